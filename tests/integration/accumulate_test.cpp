// The example `accumulate` ends with the line that its first comment states, alone and on two
// ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

TEST(Accumulate, ExchangesGradientsOnceForEachStepOfTheOptimizer) {
  for (const std::string ranks : {"1", "2"}) {
    Job job(ddprun({"--nproc-per-node=" + ranks}, {DDPRUN_ACCUMULATE}));
    ASSERT_EQ(job.wait(seconds(60)), exited(0)) << job.err();
    EXPECT_THAT(job.out(), testing::EndsWith("400 backward passes, 100 exchanges of gradients\n"));
  }
}

}  // namespace
}  // namespace ddprun::test
