// A file system that does not answer (a file server that is down) blocks the workers that use it,
// but never the agent: it still answers requests and ends when it is told to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// What has been printed may wait for the disk for five seconds, an error file for two.
constexpr seconds kEndLimit{20};

class HangingFiles : public ::testing::Test {
 protected:
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  void SetUp() override { GTEST_SKIP() << "what is preloaded has to come after the sanitizer"; }
#endif

  // Of ddprun; its workers are linked statically and do not hang.
  JobSetup where_hangs(const std::string& part) const {
    return {.environment = {{"LD_PRELOAD", DDPRUN_HANGING_FILES},
                            {"DDPRUN_TEST_HANGS", part},
                            {"DDPRUN_TEST_HANGS_WHILE", hangs_},
                            {"DDPRUN_CONTROL_DIR", tree_ / "control"}}};
  }
  JobSetup where_the_logs_hang() const { return where_hangs(logs_); }

  void hang() const { write_file(hangs_, ""); }
  void answer_again() const { std::filesystem::remove(hangs_); }

  bool can_be_asked() const {
    const Told told = run_to_its_end(ddpctl({"status"}),
                                     {.environment = {{"DDPRUN_CONTROL_DIR", tree_ / "control"}}});
    return told.code == 0;
  }
  bool both_began(Job& job, int round) const {
    return job.reaches([&] { return stamps(tree_.path(), round).size() == 2; });
  }
  // The folder of the only run.
  std::string run_folder() const {
    for (const auto& entry : std::filesystem::directory_iterator(logs_)) return entry.path();
    return "";
  }

  const TemporaryTree tree_;
  const std::string logs_ = tree_ / "the_logs";
  const std::string hangs_ = tree_ / "hangs";
};

TEST_F(HangingFiles, ALogFolderThatHangsFromTheStartHoldsUpNoSignalAndNoQuestion) {
  hang();  // after the launcher has tried the folder, as no signal is handled yet
  Job job(ddprun({"--log-dir=" + logs_, "--rdzv-id=job", "--tee=3"}, worker({"wait"})),
          where_hangs(logs_ + "/job_"));
  ASSERT_TRUE(job.reaches([&] { return can_be_asked(); })) << job.err();
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(kEndLimit), exited(143)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("log folder " + logs_ + " did not answer"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HangingFiles, ARestartWhoseLogFolderHangsHoldsUpNoSignalAndNoQuestion) {
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=3", "--log-dir=" + logs_, "--tee=3"},
                 worker({"print", "hello", "stamp", tree_.path(), "wait"})),
          where_the_logs_hang());
  ASSERT_TRUE(both_began(job, 0)) << job.err();
  hang();
  ::kill(stamps(tree_.path(), 0).at(1).pid, SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return job.err().find("restart 1 of 3") != std::string::npos; }))
      << job.err();
  EXPECT_TRUE(can_be_asked());
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("does not answer; workers start when it does") != std::string::npos;
  })) << job.err();
  EXPECT_TRUE(can_be_asked());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(kEndLimit), exited(143)) << job.err();
  EXPECT_THAT(job.err(),
              ContainsRegex("log folder " + logs_ + "/[^ ]* did not answer in time; what"));
  EXPECT_THAT(job.left_over(), IsEmpty());
  EXPECT_TRUE(stamps(tree_.path(), 1).empty());
}

TEST_F(HangingFiles, ARestartGoesOnWhenTheLogFolderAnswersAgainAndLosesNothing) {
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=3", "--log-dir=" + logs_, "--redirects=3"},
                 worker({"stamp", tree_.path(), "flood", "20000", "on-round", "1", "exit", "0",
                         "wait"})),
          where_the_logs_hang());
  ASSERT_TRUE(both_began(job, 0)) << job.err();
  hang();
  ::kill(stamps(tree_.path(), 0).at(1).pid, SIGKILL);
  ASSERT_TRUE(job.reaches([&] { return job.err().find("restart 1 of 3") != std::string::npos; }))
      << job.err();
  answer_again();
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  for (const std::string rank : {"0", "1"}) {
    const std::string log = read_file(run_folder() + "/attempt_1/" + rank + "/stdout.log");
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 20'000);
  }
}

TEST_F(HangingFiles, AWriteThatHangsEndsWithASignal) {
  Job job(ddprun({"--log-dir=" + logs_, "--redirects=3"},
                 worker({"stamp", tree_.path(), "until", tree_ / "go", "flood", "100000", "wait"})),
          where_the_logs_hang());
  ASSERT_TRUE(job.reaches([&] { return stamps(tree_.path(), 0).size() == 1; })) << job.err();
  hang();
  write_file(tree_ / "go", "");
  ASSERT_TRUE(job.reaches([&] {
    return job.err().find("has taken nothing for 5 s") != std::string::npos;
  })) << job.err();
  EXPECT_TRUE(can_be_asked());
  job.signal(SIGTERM);
  EXPECT_EQ(job.wait(kEndLimit), exited(143)) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("log folder " + logs_ + "/[^ ]* did not answer"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

TEST_F(HangingFiles, AnErrorFileThatCannotBeReadCostsTheReportItsMessageOnly) {
  Job job(ddprun({"--nproc-per-node=2", "--log-dir=" + logs_},
                 worker({"error-file", "told", "stamp", tree_.path(), "until", tree_ / "go",
                         "on-rank", "0", "exit", "3", "wait"})),
          where_hangs("error.json"));
  ASSERT_TRUE(both_began(job, 0)) << job.err();
  hang();
  write_file(tree_ / "go", "");
  EXPECT_EQ(job.wait(kEndLimit), exited(3)) << job.err();
  EXPECT_THAT(job.err(), AllOf(HasSubstr("error.json cannot be read"), HasSubstr("FAILED: rank 0"),
                               Not(HasSubstr("SIGKILL"))))
      << "the other one ended when it was told to";
}

TEST_F(HangingFiles, AStrangerWhoseEnvironmentCannotBeReadIsNamedAndLeftAlone) {
  hang();
  // Its environment is read only where there is no control group.
  Job job(without_control_groups(ddprun({"--kill-orphans"}, worker({"daemon", "exit", "0"}))),
          where_hangs("/environ"));
  const Ended ended = job.wait(kEndLimit);
  if (ended == exited(1) || ended == exited(99)) GTEST_SKIP() << job.err();
  EXPECT_EQ(ended, exited(0)) << job.err();
  EXPECT_THAT(job.err(), ContainsRegex("process [0-9]+ hangs in the kernel"));
}

}  // namespace
}  // namespace ddprun::test
