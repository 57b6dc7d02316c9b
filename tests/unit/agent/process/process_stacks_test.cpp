#include "agent/process/process_stacks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using Pids = std::vector<pid_t>;

void add_thread(const TemporaryTree& proc, int pid, int thread, const std::string& comm,
                const std::string& state, const std::string& wchan, const std::string& stack,
                const std::string& children = "") {
  const std::string folder = std::to_string(pid) + "/task/" + std::to_string(thread) + "/";
  proc.write(folder + "comm", comm + "\n");
  proc.write(folder + "status", "Name:\t" + comm + "\nState:\t" + state + "\n");
  proc.write(folder + "wchan", wchan);
  proc.write(folder + "stack", stack);
  proc.write(folder + "children", children);
}

TEST(ProcessStacks, TellThreadsThatDoTheSameTogether) {
  const TemporaryTree proc;
  proc.write("70/status",
             "Name:\tpython3\nState:\tS (sleeping)\nSigQ:\t0/1\nSigIgn:\t0000000000004000\n");
  add_thread(proc, 70, 70, "python3", "D (disk sleep)", "nfs_wait",
             "[<0>] nfs_wait+0x1\n[<0>] do_syscall_64+0x2\n");
  add_thread(proc, 70, 71, "pool", "S (sleeping)", "futex_wait", "[<0>] futex_wait+0x1\n");
  add_thread(proc, 70, 72, "pool", "S (sleeping)", "futex_wait", "[<0>] futex_wait+0x1\n");
  add_thread(proc, 70, 100, "spins", "R (running)", "0", "");
  EXPECT_EQ(stacks_of(70, proc.path()),
            "process 70 (python3), 4 threads\n"
            "  SigQ 0/1\n"
            "  SigIgn 0000000000004000\n"
            "  70 python3: D (disk sleep), waits in nfs_wait\n"
            "      [<0>] nfs_wait+0x1\n"
            "      [<0>] do_syscall_64+0x2\n"
            "  71 pool, 72 pool: S (sleeping), waits in futex_wait\n"
            "      [<0>] futex_wait+0x1\n"
            "  100 spins: R (running)\n");
}

TEST(ProcessStacks, FollowTheTreeThroughChildrenOfAnyThread) {
  const TemporaryTree proc;
  add_thread(proc, 1, 1, "sh", "S", "", "", "5 ");
  add_thread(proc, 5, 5, "python3", "S", "", "", "8 9 ");
  add_thread(proc, 5, 6, "loader", "S", "", "", "7 ");
  EXPECT_EQ(process_tree(1, proc.path()), (Pids{1, 5, 8, 9, 7}));
  EXPECT_EQ(thread_count(5, proc.path()), 2U);
}

TEST(ProcessStacks, OfAProcessThatIsGoneAreShort) {
  const TemporaryTree proc;
  EXPECT_EQ(process_tree(3, proc.path()), Pids{3});
  EXPECT_EQ(stacks_of(3, proc.path()), "process 3 (), 0 threads\n");
}

TEST(ProcessStacks, SayWhatHoldsAProcess) {
  const TemporaryTree proc;
  proc.write("1/status", "Name:\ta\nState:\tS (sleeping)\nTracerPid:\t0\n");
  proc.write("2/status", "Name:\ta\nState:\tT (stopped)\nTracerPid:\t0\n");
  proc.write("3/status", "Name:\ta\nState:\tS (sleeping)\nTracerPid:\t9\n");
  EXPECT_EQ(rank_state_of(1, proc.path()), RankState::kRuns);
  EXPECT_EQ(rank_state_of(2, proc.path()), RankState::kStopped);
  EXPECT_EQ(rank_state_of(3, proc.path()), RankState::kTraced);
  EXPECT_EQ(rank_state_of(4, proc.path()), RankState::kRuns) << "it is gone";
}

TEST(ProcessStacks, OfThisProcessCanBeRead) {
  const std::string text = stacks_of(getpid());
  EXPECT_NE(text.find("process " + std::to_string(getpid())), std::string::npos) << text;
  EXPECT_NE(text.find("running"), std::string::npos) << text;
}

}  // namespace
}  // namespace ddprun::agent
