// Python programs that know nothing of ddprun run under it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;

class Python : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(DDPRUN_PYTHON)) {
      GTEST_SKIP() << DDPRUN_PYTHON << " is not there: scripts/setup installs PyTorch in it";
    }
  }
  const std::string script_ = DDPRUN_SOURCE_DIR "/tests/integration/process_group.py";
  const JobSetup setup_{.environment = {{"PYTHON_EXEC", DDPRUN_PYTHON}}};
};

TEST_F(Python, FormsAProcessGroupFromTheEnvironment) {
  Job job(ddprun({"--nproc-per-node=2"}, {script_}), setup_);
  EXPECT_EQ(job.wait(seconds(90)), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0 of 2 has 3\n"));
  EXPECT_THAT(job.out(), HasSubstr("rank 1 of 2 has 3\n"));
}

// Rank 0 hosts the store itself, at a port that the agent holds for it.
TEST_F(Python, FormsItAroundAStoreOfItsOwn) {
  JobSetup setup = setup_;
  setup.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1";
  Job job(ddprun({"--nproc-per-node=2", "--standalone"}, {script_}), setup);
  EXPECT_EQ(job.wait(seconds(90)), exited(0)) << job.err();
  EXPECT_THAT(job.out(), HasSubstr("rank 0 of 2 has 3\n"));
  EXPECT_THAT(job.out(), HasSubstr("rank 1 of 2 has 3\n"));
}

// Under torchrun 2.11 half of these fail: its second round reads the addresses of the first.
TEST_F(Python, FormsItAgainAfterARestart) {
  for (int run = 0; run < (full_tests() ? 20 : 3); ++run) {
    Job job(ddprun({"--nproc-per-node=2", "--max-restarts=1"}, {script_, "--die-once"}), setup_);
    EXPECT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    const std::string output = job.out();
    const auto first = output.find("rank 0 of 2 has 3\n");
    ASSERT_NE(first, std::string::npos) << output << job.err();
    EXPECT_NE(output.find("rank 0 of 2 has 3\n", first + 1), std::string::npos) << output;
  }
}

}  // namespace
}  // namespace ddprun::test
