// What the agent says to a standby whose model is to be on a GPU.
#include "worker_lib/group/standby_gpu.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(StandbyGpu, IsReadFromItsVariable) {
  const auto its = parse_standby_gpu("context 3 123456789012");
  ASSERT_TRUE(its);
  EXPECT_EQ(its->preparation, link::Preparation::kContext);
  EXPECT_EQ(its->index, 3U);
  EXPECT_EQ(its->bytes, 123456789012U);
  EXPECT_EQ(parse_standby_gpu("whole 0 1")->preparation, link::Preparation::kWhole);
  EXPECT_EQ(parse_standby_gpu("nothing 0 1")->preparation, link::Preparation::kNothing);
  for (const char* const text :
       {"", "whole", "whole ", "whole 0", "half 0 1", "whole 0 x", "whole 0 1 2", "whole -1 1"}) {
    EXPECT_FALSE(parse_standby_gpu(text)) << text;
  }
}

}  // namespace
}  // namespace ddprun
