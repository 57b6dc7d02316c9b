#include "agent/query/stack_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ddprun::agent {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(Stacks, OfGdb) {
  const std::string text = R"text([New LWP 12]
[Thread debugging using libthread_db enabled]
warning: 30	../sysdeps/unix/epoll_wait.c: No such file or directory

Thread 3 (Thread 0x7f42fb7fe6c0 (LWP 13) "gloo"):
#0  epoll_wait (epfd=6, events=0x7f43, maxevents=64) at ../sysdeps/unix/epoll_wait.c:30
#1  0x00007f4329227b6d in gloo::transport::tcp::Loop::run() () from /usr/lib/libtorch_cpu.so
#2  0x00007f438ded44a3 in ?? () from /lib/libstdc++.so.6

Thread 2 (Thread 0x7f42fbfff6c0 (LWP 12) "gloo"):
#0  epoll_wait (epfd=9, events=0x7f44, maxevents=64) at ../sysdeps/unix/epoll_wait.c:30
#1  0x00007f4329227b6d in _ZN4gloo9transport3tcp4Loop3runEv () from /usr/lib/libtorch_cpu.so
#2  0x00007f438ded44a3 in ?? () from /lib/libstdc++.so.6

Thread 1 (Thread 0x7f43b8b54040 (LWP 11) "train"):
#0  std::function<void (int, char const*)>::operator() (this=0x1, text=" at ") at /src/a b/f.h:9
#1  (anonymous namespace)::step<std::vector<int, std::allocator<int> > > (x=...) at train.cpp:30
#2  0x000055d0 in main (argc=1, argv=0x7ffd) at train.cpp:90
[Inferior 1 (process 11) detached]
)text";
  EXPECT_THAT(
      threads_in(text, 11),
      ElementsAre(
          ThreadStack{"train", 1, true,
                      "std::function<void (int, char const*)>::operator() (f.h:9)\n"
                      "(anonymous namespace)::step<std::vector<int, std::allocator<int> > > "
                      "(train.cpp:30)\n"
                      "main (train.cpp:90)\n"},
          ThreadStack{"gloo", 2, false,
                      "epoll_wait (epoll_wait.c:30)\n"
                      "gloo::transport::tcp::Loop::run() (libtorch_cpu.so)\n"
                      "?? (libstdc++.so.6)\n"}));
}

TEST(Stacks, OfEuStack) {
  const std::string text = R"text(PID 11 - process
TID 11:
#0  0x00007f43b8c24545 clock_nanosleep@GLIBC_2.2.5
#1  0x00000000005d64b4
#2  0x00007f4329227b6d gloo::transport::tcp::Loop::run()
TID 12:
#0  0x00007f43b8bdd5d8 pthread_cond_wait
)text";
  const std::string of_kernel = "process 11 (a), 2 threads\n  11 train, 12 gloo: S (sleeping)\n";
  EXPECT_THAT(threads_in(text, 11, of_kernel),
              ElementsAre(ThreadStack{"train", 1, true,
                                      "clock_nanosleep\n"
                                      "??\n"
                                      "gloo::transport::tcp::Loop::run()\n"},
                          ThreadStack{"gloo", 1, false, "pthread_cond_wait\n"}));
}

TEST(Stacks, OfPySpy) {
  const std::string text = R"text(Process 11: python -u train.py
Python v3.11.2 (/usr/bin/python3.11)

Thread 12 (active): "loader (1)"
    get (queue.py:171)
    run (threading.py:982)
Thread 11 (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4806)
    <module> (train.py:4)
)text";
  EXPECT_THAT(threads_in(text, 11),
              ElementsAre(ThreadStack{"MainThread", 1, true,
                                      "barrier (torch/distributed/distributed_c10d.py:4806)\n"
                                      "<module> (train.py:4)\n"},
                          ThreadStack{"loader (1)", 1, false,
                                      "get (queue.py:171)\nrun (threading.py:982)\n"}));
}

TEST(Stacks, OfFaulthandler) {
  const std::string text = R"text(Thread 0x00007f9b66ffd6c0 (most recent call first):
  File "<frozen importlib of ddprun>/collectives.py", line 314 in _run

Thread 0x00007f9b67fff6c0 [loader] (most recent call first):
  File "<frozen importlib of ddprun>/collectives.py", line 270 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/me/a "b" c.py", line 9 in <lambda>
  ...

Current thread 0x00007f9c0a2f0040 (most recent call first):
  File "/home/me/train.py", line 12 in load
  File "/home/me/train.py", line 90 in <module>
)text";
  EXPECT_THAT(threads_in(text, 11),
              ElementsAre(ThreadStack{"", 1, true, "load (train.py:12)\n<module> (train.py:90)\n"},
                          ThreadStack{"loader", 1, false,
                                      "get (queue.py:171)\n<lambda> (a \"b\" c.py:9)\n"}))
      << "ddprun's own thread is not the program's, and neither are its frames";
}

TEST(Stacks, OfFaulthandlerHaveTheFramesOfTheProgram) {
  const std::string text = R"text(Thread 0x00007f9b67fff6c0 (most recent call first):
  File "/home/me/other.py", line 9 in run

Current thread 0x00007f9c0a2f0040 (most recent call first):
  File "<frozen importlib of ddprun>/collectives.py", line 270 in wait
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1133 in _try_get_data
  File "/home/me/loader.py", line 40 in next_batch
  File "<frozen runpy>", line 88 in _run_code
  File "/home/me/train.py", line 90 in <module>
)text";
  EXPECT_EQ(
      program_frames_in("Stack (most recent call first):\n  File \"/home/me/a.py\", line 3 in f\n"),
      "f (a.py:3)\n")
      << "of the main thread alone";
  EXPECT_EQ(program_frames_in(text), "next_batch (loader.py:40)\n<module> (train.py:90)\n");
  EXPECT_THAT(program_frames_in("garbage\nCurrent thread"), IsEmpty());
}

TEST(Stacks, OfTheKernel) {
  const std::string text = R"text(process 11 (train), 3 threads
  SigQ 0/95000
  SigBlk 0000000000000000
  12 gloo, 13 gloo: S (sleeping), waits in futex_wait_queue
      [<0>] futex_wait_queue+0x60/0x90
      [<0>] do_futex+0xde/0x190
  11 a: b: D (disk sleep), waits in nfs_wait
)text";
  EXPECT_THAT(threads_in(text, 11),
              ElementsAre(ThreadStack{"a: b", 1, true, "D (disk sleep), waits in nfs_wait\n"},
                          ThreadStack{"gloo", 2, false,
                                      "S (sleeping), waits in futex_wait_queue\n"
                                      "kernel: futex_wait_queue+0x60/0x90\n"
                                      "kernel: do_futex+0xde/0x190\n"}));
}

TEST(Stacks, OfSomethingElseAreNone) {
  for (const char* text : {"", "\n\n", "ptrace: Operation not permitted.\n", "Thread", "TID", "#",
                           "#0", "Thread 1 (Thread", "#0 x\n    y\n", "  7", "TID x:\n#"}) {
    EXPECT_THAT(threads_in(text, 11), testing::AnyOf(IsEmpty(), SizeIs(1))) << text;
  }
  EXPECT_THAT(threads_in("ptrace: Operation not permitted.\n#0 main\n", 11), IsEmpty());
}

// What a tool says of a process with very many threads.
TEST(Stacks, OfTenThousandThreadsAreReadAndShortened) {
  std::string text;
  for (int thread = 1; thread <= 10'000; ++thread) {
    text += "TID " + std::to_string(thread) + ":\n#0  0x01 wait" + std::to_string(thread % 1000) +
            "\n#1  0x02 main\n";
  }
  const auto begin = std::chrono::steady_clock::now();
  WorkerStacks stacks;
  stacks.threads = threads_in(text, 7);
  EXPECT_THAT(stacks.threads, SizeIs(1000));
  EXPECT_TRUE(stacks.threads.front().is_main);
  WorkerStacks brief = stacks;
  make_brief(brief);
  ASSERT_THAT(brief.threads, SizeIs(1));
  EXPECT_EQ(brief.threads[0].stack, "wait7\nmain\n");
  shorten(stacks, 4096);
  EXPECT_LT(to_json({stacks}).size(), 8192U);
  EXPECT_THAT(stacks.trouble, ::testing::HasSubstr("threads are left out"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(Stacks, AreTheSameAfterTheWay) {
  const std::vector<WorkerStacks> stacks{
      {3, "b12", 4711, "S (sleeping)", "gdb", {{"train", 1, true, "main (a.cpp:1)\n"}}, ""},
      {-1, "b13", 0, "", "", {}, "no answer"}};
  const auto read = worker_stacks_from(to_json(stacks));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(*read, stacks);
  EXPECT_EQ(*stack_query_from(to_json(StackQuery{{1, 5}, {7}, true, true})),
            (StackQuery{{1, 5}, {7}, true, true}));
  EXPECT_FALSE(stack_query_from("{}"));
  EXPECT_FALSE(worker_stacks_from("[{}]"));
}

TEST(Stacks, ThatAreTooLongKeepTheMainThreadAndTheInnermostFrames) {
  WorkerStacks stacks{0, "a", 11, "R (running)", "gdb", {}, "no ptrace"};
  std::string deep;
  for (int i = 0; i < 400; ++i) deep += "recursion (deep.cpp:" + std::to_string(i) + ")\n";
  stacks.threads.push_back({"main", 1, true, deep});
  for (int i = 0; i < 100; ++i) {
    stacks.threads.push_back(
        {"loader", 3, false, std::string(100, 'x') + std::to_string(i) + "\n"});
  }
  WorkerStacks same = stacks;
  shorten(same, 1 << 20);
  EXPECT_EQ(same, stacks);
  shorten(stacks, 4096);
  EXPECT_LE(to_json({stacks}).size(), 2 * 4096U);
  EXPECT_TRUE(stacks.threads[0].stack.starts_with("recursion (deep.cpp:0)\n"));
  EXPECT_TRUE(stacks.threads[0].stack.ends_with("(deep.cpp:11)\n…\n"));
  EXPECT_THAT(stacks.trouble, testing::HasSubstr("no ptrace; "));
  EXPECT_THAT(stacks.trouble, testing::HasSubstr(" threads are left out"));
}

}  // namespace
}  // namespace ddprun::agent
