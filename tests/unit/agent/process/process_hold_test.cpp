// What holds a process, from files as the kernel writes them, and of a real one.
#include "agent/process/process_hold.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

TEST(ProcessHoldTest, SaysWhatHoldsAProcess) {
  const TemporaryTree proc;
  const auto status = [&](const char* pid, const char* state, const char* tracer) {
    proc.write(std::string(pid) + "/status", std::string("Name:\ta\nState:\t") + state +
                                                 "\nTracerPid:\t" + tracer +
                                                 "\nvoluntary_ctxt_switches:\t40\n"
                                                 "nonvoluntary_ctxt_switches:\t2\n");
  };
  status("1", "S (sleeping)", "0");
  status("2", "T (stopped)", "0");
  status("3", "S (sleeping)", "9");
  status("4", "D (disk sleep)", "0");
  EXPECT_EQ(hold_of(1, proc.path()), (ProcessHold{RankState::kRuns, 42}));
  EXPECT_EQ(hold_of(2, proc.path()), (ProcessHold{RankState::kStopped, 42}));
  EXPECT_EQ(hold_of(3, proc.path()), (ProcessHold{RankState::kTraced, 42}));
  EXPECT_EQ(hold_of(4, proc.path()), (ProcessHold{RankState::kUninterruptible, 42}));
  EXPECT_EQ(hold_of(5, proc.path()), ProcessHold{}) << "it is gone";
}

TEST(ProcessHoldTest, SeesAFrozenGroupOfEitherVersion) {
  const TemporaryTree files;
  const std::string proc = files / "proc";
  const std::string groups = files / "groups";
  files.write("proc/1/cgroup", "0::/job/w\n");
  files.write("proc/2/cgroup", "6:freezer:/job\n5:devices:/\n0::/none\n");
  EXPECT_FALSE(is_frozen(1, proc, groups));
  for (const char* const place : {"groups/job/w", "groups/unified/job/w"}) {
    files.write(std::string(place) + "/cgroup.events", "populated 1\nfrozen 1\n");
    EXPECT_TRUE(is_frozen(1, proc, groups)) << place;
    files.write(std::string(place) + "/cgroup.events", "populated 1\nfrozen 0\n");
    EXPECT_FALSE(is_frozen(1, proc, groups)) << place;
  }
  files.write("groups/freezer/job/freezer.state", "THAWED\n");
  EXPECT_FALSE(is_frozen(2, proc, groups));
  files.write("groups/freezer/job/freezer.state", "FROZEN\n");
  EXPECT_TRUE(is_frozen(2, proc, groups));
  EXPECT_FALSE(is_frozen(3, proc, groups)) << "it is gone";
}

// A vfork's parent waits for its child inside of the kernel, where signals do not reach it.
TEST(ProcessHoldTest, ShowsThatAProcessInTheKernelHasNotRun) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "which makes a fork of a vfork";
#endif
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t waiting = getpid();
    if (vfork() == 0) {  // NOLINT(clang-analyzer-security.insecureAPI.vfork)
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      // The parent may have been killed before prctl, and the signal is then never sent.
      while (getppid() == waiting) pause();
    }
    _exit(0);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (hold_of(parent).state != RankState::kUninterruptible) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  const ProcessHold first = hold_of(parent);
  EXPECT_EQ(hold_of(parent), first);
  EXPECT_FALSE(is_frozen(parent));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
}

}  // namespace
}  // namespace ddprun::agent
