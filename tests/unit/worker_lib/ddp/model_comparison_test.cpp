#include "worker_lib/ddp/model_comparison.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ModelComparison, EqualModelsDoNotDiffer) {
  const ModelDescription model{{"a", "[2]"}, {"b", "[3]"}};
  EXPECT_EQ(first_difference({model, model}), "");
  EXPECT_EQ(first_difference(std::vector<ModelDescription>(2)), "");
}

TEST(ModelComparison, AShapeIsNamedWithTheParameterAndTheRanks) {
  const auto model = [](const char* what) { return ModelDescription{{"a", "[2]"}, {"b", what}}; };
  EXPECT_EQ(
      first_difference({model("[3]"), model("[4]"), model("[3]"), model("[3]"), model("[5]")}),
      "b is [3] on ranks 0, 2 and 3 and [4] on rank 1 and [5] on rank 4");
}

TEST(ModelComparison, AParameterThatARankLacksIsNamed) {
  EXPECT_EQ(first_difference(
                {ModelDescription{{"a", "[2]"}, {"b", "[3]"}}, ModelDescription{{"a", "[2]"}}}),
            "number 2 of the parameters and buffers is b on rank 0 and nothing on rank 1");
  EXPECT_EQ(first_difference({ModelDescription{{"a", "[2]"}}, ModelDescription{{"c", "[2]"}}}),
            "number 1 of the parameters and buffers is a on rank 0 and c on rank 1");
}

}  // namespace
}  // namespace ddprun
