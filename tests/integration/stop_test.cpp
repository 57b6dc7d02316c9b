// How workers are stopped: what a stop signal reaches, how long a worker may save, and what escalates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

bool all_started(Job& job, const TemporaryTree& folder, std::size_t count) {
  return job.reaches([&] { return stamps(folder.path(), 0).size() == count; });
}

bool exists(const std::string& file) { return std::filesystem::exists(file); }

// GNU timeout signals its child, and then its process group, to which the child belongs.
TEST(Stop, ByGnuTimeoutLetsEveryWorkerSave) {
  for (const std::size_t workers : {1, 8}) {
    for (int run = 0; run < (full_tests() ? 20 : 3); ++run) {
      const TemporaryTree folder;
      Command command =
          ddprun({"--nproc-per-node=" + std::to_string(workers)},
                 worker({"catch", "15", "stamp", folder.path(), "until-caught", "work", "200",
                         "touch", folder / "saved.{rank}", "exit", "0"}));
      command.insert(command.begin(), {"timeout", "1h"});
      Job job(command);
      ASSERT_TRUE(all_started(job, folder, workers)) << job.err();
      job.signal(SIGTERM);  // timeout passes it on as it does at the end of its time
      EXPECT_EQ(job.wait(), exited(143)) << job.err();
      for (std::size_t rank = 0; rank < workers; ++rank) {
        EXPECT_TRUE(exists(folder / ("saved." + std::to_string(rank)))) << job.err();
      }
      EXPECT_THAT(job.err(), Not(HasSubstr("SIGKILL")));
    }
  }
}

TEST(Stop, ASecondSignalKillsTheWorkersAndTheReportNamesIt) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"catch", "15", "stamp", folder.path(), "wait"})));
  ASSERT_TRUE(all_started(job, folder, 1)) << job.err();
  job.signal(SIGTERM);
  ASSERT_TRUE(job.reaches([&] { return job.err().find("stopping") != std::string::npos; }));
  job.signal(SIGINT);
  EXPECT_EQ(job.wait(seconds(20)), exited(143)) << "sooner than the grace period";
  EXPECT_THAT(job.err(), HasSubstr("\n  killed      the workers, because of SIGINT from process " +
                                   std::to_string(::getpid()) + ", "));
}

// A loader of data serves its rank until that has saved.
TEST(Stop, TheChildrenOfAWorkerThatHandlesTheSignalLiveUntilItHasEnded) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"child", "catch", "15", "stamp", folder.path(), "until-caught",
                             "touch", folder / "told", "work", "300", "until-unless-child-dies", folder / "go",
                             "touch", folder / "saved", "exit", "0"})));
  ASSERT_TRUE(all_started(job, folder, 1)) << job.err();
  job.signal(SIGTERM);
  ASSERT_TRUE(job.reaches([&] { return exists(folder / "told"); })) << job.err();
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(143)) << job.err();
  EXPECT_TRUE(exists(folder / "saved"));
  EXPECT_THAT(job.left_over(), IsEmpty());
}

// The shell dies of the signal, or waits for its child before it runs its trap.
TEST(Stop, AProgramThatAShellHasStartedSaves) {
  for (const std::string trap : {"", "trap 'exit 3' TERM; "}) {
    const TemporaryTree folder;
    std::string program = trap;
    for (const std::string& word :
         worker({"catch", "15", "stamp", folder.path(), "until-caught", "work", "300", "touch",
                 folder / "saved", "exit", "0"})) {
      program += "'" + word + "' ";
    }
    program += "; touch '" + (folder / "went_on") + "'";
    Job job(ddprun({"--no-python"}, {"sh", "-c", program}));
    ASSERT_TRUE(all_started(job, folder, 1)) << job.err();
    job.signal(SIGTERM);
    EXPECT_EQ(job.wait(), exited(143)) << job.err();
    EXPECT_TRUE(exists(folder / "saved")) << program;
    EXPECT_FALSE(exists(folder / "went_on")) << program;
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// ---- after a failure

// Rank 1 fails when rank 0 runs; rank 0 handles SIGTERM and does the rest.
Command after_failure(const TemporaryTree& folder, const std::vector<std::string>& options,
                      std::initializer_list<std::string> rest) {
  Command command =
      worker({"on-rank", "1", "until", folder / "0.0", "on-rank", "1", "exit", "3", "catch", "15"});
  command.insert(command.end(), rest);
  Command all{"--nproc-per-node=2"};
  all.insert(all.end(), options.begin(), options.end());
  return ddprun(all, command);
}

TEST(AfterAFailure, AWorkerOutsideOfCollectivesHasItsTimeToSave) {
  const TemporaryTree folder;
  Job job(after_failure(folder, {},
                        {"record", "stamp", folder.path(), "until-caught", "work", "2500", "touch",
                         folder / "saved", "exit", "0"}));
  EXPECT_EQ(job.wait(), exited(3)) << job.err();
  EXPECT_TRUE(exists(folder / "saved")) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 0 handles SIGTERM and is outside of collectives: what it "
                                   "saves has at most 29 s more"));
}

TEST(AfterAFailure, AWorkerThatEntersACollectiveIsKilledSoonAfter) {
  const TemporaryTree folder;
  Job job(after_failure(folder, {},
                        {"record", "stamp", folder.path(), "until-caught", "work", "1500", "touch",
                         folder / "saved", "enter-call", "wait"}));
  EXPECT_EQ(job.wait(seconds(20)), exited(3)) << "sooner than --shutdown-timeout: " << job.err();
  EXPECT_TRUE(exists(folder / "saved")) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("get SIGKILL"));
}

TEST(AfterAFailure, TheOptionFixesTheTime) {
  const TemporaryTree folder;
  Job job(after_failure(folder, {"--failure-shutdown-timeout=0.5"},
                        {"record", "stamp", folder.path(), "until-caught", "wait"}));
  EXPECT_EQ(job.wait(seconds(20)), exited(3)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("did not end within 500 ms after the failure"));
}

}  // namespace
}  // namespace ddprun::test
