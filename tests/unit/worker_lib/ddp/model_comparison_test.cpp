#include "worker_lib/ddp/model_comparison.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ModelComparison, EqualModelsDoNotDiffer) {
  EXPECT_EQ(first_difference({"a\t[2]\nb\t[3]\n", "a\t[2]\nb\t[3]\n"}), "");
  EXPECT_EQ(first_difference({"", ""}), "");
}

TEST(ModelComparison, AShapeIsNamedWithTheParameterAndTheRanks) {
  EXPECT_EQ(first_difference({"a\t[2]\nb\t[3]\n", "a\t[2]\nb\t[4]\n", "a\t[2]\nb\t[3]\n",
                              "a\t[2]\nb\t[3]\n", "a\t[2]\nb\t[5]\n"}),
            "b is [3] on ranks 0, 2 and 3 and [4] on rank 1 and [5] on rank 4");
}

TEST(ModelComparison, AParameterThatARankLacksIsNamed) {
  EXPECT_EQ(first_difference({"a\t[2]\nb\t[3]\n", "a\t[2]\n"}),
            "number 2 of the parameters and buffers is b on rank 0 and nothing on rank 1");
  EXPECT_EQ(first_difference({"a\t[2]\n", "c\t[2]\n"}),
            "number 1 of the parameters and buffers is a on rank 0 and c on rank 1");
}

}  // namespace
}  // namespace ddprun
