#include "agent/process/process_stacks.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <latch>
#include <string>
#include <vector>

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

// Ten thousand with DDPRUN_TEST_FULL=1; as many as the machine allows, if these are fewer.
TEST(ProcessStacks, OfThousandsOfThreadsTakeNoLongTimeAndAreShort) {
  std::latch end(1);
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 64 * 1024);
  std::vector<pthread_t> threads(std::getenv("DDPRUN_TEST_FULL") == nullptr ? 2000 : 10'000);
  const auto wait = [](void* latch) -> void* {
    static_cast<std::latch*>(latch)->wait();
    return nullptr;
  };
  std::size_t count = 0;
  while (count < threads.size() && pthread_create(&threads[count], &small, wait, &end) == 0)
    ++count;
  const std::size_t all = thread_count(getpid());
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = stacks_of(getpid());
  const auto took = std::chrono::steady_clock::now() - begin;
  end.count_down();
  for (std::size_t i = 0; i < count; ++i) pthread_join(threads[i], nullptr);
  pthread_attr_destroy(&small);
  EXPECT_GT(all, count) << "a sanitizer has one of its own, too";
  EXPECT_NE(text.find(", " + std::to_string(all) + " threads\n"), std::string::npos);
  EXPECT_LT(text.size(), 100'000U) << "of 1024 threads at most";
  EXPECT_LT(took, std::chrono::seconds(5));
}

TEST(ProcessStacks, OfThisProcessCanBeRead) {
  const std::string text = stacks_of(getpid());
  EXPECT_NE(text.find("process " + std::to_string(getpid())), std::string::npos) << text;
  EXPECT_NE(text.find("running"), std::string::npos) << text;
}

}  // namespace
}  // namespace ddprun::agent
