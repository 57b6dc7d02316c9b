// The launcher's exit code: that of the first failure, or 128 + its signal; all values.
#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ExitCode, IsTheWorkersOwnForEveryCode) {
  for (int code = 0; code < 256; ++code) {
    Job job(ddprun({}, worker({"exit", std::to_string(code)})));
    ASSERT_EQ(job.wait(), exited(code)) << job.err();
  }
}

TEST(ExitCode, Is128PlusTheSignalForEverySignalThatKills) {
  const std::set<int> harmless{SIGCHLD, SIGCONT, SIGURG, SIGWINCH};
  const std::set<int> stopping{SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
  for (int number = 1; number <= 31; ++number) {
    if (stopping.contains(number)) continue;
    Job job(ddprun({}, worker({"signal", std::to_string(number), "exit", "0"})));
    ASSERT_EQ(job.wait(), exited(harmless.contains(number) ? 0 : 128 + number)) << job.err();
  }
}

TEST(ExitCode, AStoppedWorkerHasNotEnded) {
  const TemporaryTree folder;
  Job job(ddprun({}, worker({"stamp", folder.path(), "signal", "19", "exit", "4"})));
  ASSERT_TRUE(job.reaches([&] {
    const auto started = stamps(folder.path(), 0);
    const auto info = started.empty() ? std::nullopt : process(started.at(0).pid);
    return info && info->state == 'T';
  }));
  EXPECT_EQ(job.wait(milliseconds(100)), Ended{});
  kill(stamps(folder.path(), 0).at(0).pid, SIGCONT);
  EXPECT_EQ(job.wait(), exited(4)) << job.err();
}

TEST(ExitCode, IsOfTheFirstCauseNotOfThoseItTookAlong) {
  Job job(ddprun({"--nproc-per-node=4"}, worker({"on-rank", "2", "exit", "7", "wait"})));
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
}

TEST(ExitCode, IsZeroOnlyWhenEveryWorkerEndedWithZero) {
  const TemporaryTree folder;
  Job good(ddprun({"--nproc-per-node=3"}, worker({"exit", "0"})));
  EXPECT_EQ(good.wait(), exited(0)) << good.err();
  // The failing one fails after the others have ended well.
  Job job(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "1", "until", folder / "go",  //
                                                 "on-rank", "1", "exit", "9",             //
                                                 "stamp", folder.path()})));
  ASSERT_TRUE(job.reaches([&] {
    const auto started = stamps(folder.path(), 0);
    return started.contains(0) && !process(started.at(0).pid);
  }));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(9)) << job.err();
}

TEST(ExitCode, IsOneForAnyFailureAsUnderTorchrunWhenAsked) {
  for (const auto& ending : {worker({"exit", "42"}), worker({"signal", "9"})}) {
    Job job(ddprun({"--exit-code=torchrun"}, ending));
    EXPECT_EQ(job.wait(), exited(1)) << job.err();
  }
  Job job(ddprun({"--exit-code=torchrun"}, worker({"exit", "0"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
}

TEST(ExitCode, OfAPreemptedJobAsksForARequeueWhenItsWorkersHaveLeft) {
  const TemporaryTree folder;
  const std::string leaves_when_told =
      "trap 'echo saved > $0.saved.$RANK; exit 0' USR1; echo > $0.$RANK; while :; do sleep 0.01; "
      "done";
  Job job(ddprun({"--nproc-per-node=2", "--preempt-signal=SIGUSR1"},
                 {"/bin/sh", "-c", leaves_when_told, folder / "ready"}));
  ASSERT_TRUE(job.reaches([&] {
    return std::filesystem::exists(folder / "ready.0") &&
           std::filesystem::exists(folder / "ready.1");
  }));
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(), exited(113)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder / "ready.saved.0"));
  EXPECT_TRUE(std::filesystem::exists(folder / "ready.saved.1"));
  EXPECT_THAT(job.err(), HasSubstr("PREEMPTED by SIGUSR1"));
}

TEST(ExitCode, OfAJobWhoseWorkersGetThePreemptSignalFirstIsThatOfAPreemption) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--preempt-signal=SIGTERM"},
                 worker({"stamp", folder.path(), "wait"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; }));
  for (const auto& [rank, pid] : job.workers()) kill(pid, SIGTERM);
  EXPECT_EQ(job.wait(), exited(113)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("FAILED")));
}

TEST(ExitCode, OfAPreemptedJobThatComesToItsEndIsZero) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--preempt-signal=SIGUSR1"},
                 worker({"stamp", folder.path(), "until", folder / "go"})));
  ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; }));
  job.signal(SIGUSR1);
  for (const auto& [rank, pid] : job.workers()) kill(pid, SIGUSR1);  // as Slurm does
  ASSERT_TRUE(job.reaches([&] { return job.err().find("do not react") != std::string::npos; }));
  EXPECT_THAT(job.err(), HasSubstr("ranks 0 and 1 do not react to the preemption"));
  write_file(folder / "go", "");
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("PREEMPTED")));
}

// Slurm signals all processes of a job, each when it comes to it.
TEST(ExitCode, OfAPreemptedJobIsTheSameHoweverLateTheSignalCame) {
  for (int run = 0; run < 20; ++run) {
    const TemporaryTree folder;
    Job job(ddprun({"--nproc-per-node=2", "--preempt-signal=SIGTERM"},
                   worker({"stamp", folder.path(), "wait"})));
    ASSERT_TRUE(job.reaches([&] { return stamps(folder.path(), 0).size() == 2; }));
    for (const auto& [rank, pid] : job.workers()) kill(pid, SIGTERM);
    siginfo_t end{};
    while (waitid(P_PID, static_cast<id_t>(job.pid()), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end.si_pid == 0) {
      job.signal(SIGTERM);
      std::this_thread::sleep_for(
          std::chrono::microseconds(200));  // it has other things to do, too
    }
    ASSERT_EQ(job.wait(), exited(113)) << job.err();
  }
}

TEST(ExitCode, TheReportNamesTheFirstCauseByRankAndCode) {
  Job job(ddprun({"--nproc-per-node=3"}, worker({"on-rank", "1", "complain", "disk is on fire",
                                                 "on-rank", "1", "exit", "17", "wait"})));
  EXPECT_EQ(job.wait(), exited(17));
  const std::string report = job.err();
  EXPECT_THAT(report, HasSubstr("rank 1"));
  EXPECT_THAT(report, HasSubstr("17"));
  const auto first = report.find("disk is on fire");
  ASSERT_NE(first, std::string::npos) << report;
  EXPECT_NE(report.find("disk is on fire", first + 1), std::string::npos)
      << "once as it was written, once in the report:\n"
      << report;
}

TEST(ExitCode, TheReportNamesTheSignal) {
  Job job(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "0", "signal", "11", "wait"})));
  EXPECT_EQ(job.wait(), exited(139));
  EXPECT_THAT(job.err(), HasSubstr("rank 0"));
  EXPECT_THAT(job.err(), HasSubstr("SIGSEGV"));
}

}  // namespace
}  // namespace ddprun::test
