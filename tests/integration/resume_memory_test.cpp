// A resume needs little memory besides the state itself, however large that is: here 300 MB on two ranks;
// DDPRUN_TEST_FULL=1 resumes 1 GB on four.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

boost::json::value run(const std::string& ranks, const std::string& folder,
                       const std::vector<std::string>& more) {
  std::vector<std::string> program = {DDPRUN_CHECKPOINT_RESUME, "--folder=" + folder,
                                      full_tests() ? "--megabytes=1000" : "--megabytes=300"};
  program.insert(program.end(), more.begin(), more.end());
  Job job(ddprun({"--nproc-per-node=" + ranks}, program));
  EXPECT_EQ(job.wait(seconds(300)), exited(0)) << job.err();
  return boost::json::parse(job.out());
}

TEST(ResumeMemory, NoRankHoldsASecondCopyOfTheState) {
  const TemporaryTree folder;
  const auto saved = run("1", folder.path(), {"--save"});
  const auto resumed = run(full_tests() ? "4" : "2", folder.path(), {});
  EXPECT_EQ(resumed.at("sum"), saved.at("sum"));
  EXPECT_GT(resumed.at("state_bytes").as_int64(), 290'000'000);
  EXPECT_LE(resumed.at("extra_bytes").as_int64(), std::int64_t{128} << 20);
}

}  // namespace
}  // namespace ddprun::test
