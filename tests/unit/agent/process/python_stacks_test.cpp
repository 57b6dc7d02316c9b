// How a process is asked for its Python stacks. The one that is asked here is a child of this test.
#include "agent/process/python_stacks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

int g_stacks = -1;

void answer(int /*signal*/) {
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(::write(g_stacks, "line\n", 5));
    ::usleep(2000);
  }
}
void never_answer(int /*signal*/) {
  static_cast<void>(::write(g_stacks, "line\n", 5));
  for (;;) ::pause();
}

// What the hooks do.
void prepare(void (*handler)(int)) {
  const int memory = ::memfd_create(kStackMemory, 0);
  g_stacks = ::open(("/proc/self/fd/" + std::to_string(memory)).c_str(), O_WRONLY | O_APPEND);
  ::close(memory);
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(kStackSignal, &action, nullptr);
  ::sigaction(kAllStacksSignal, &action, nullptr);
}

class PythonStacksTest : public ::testing::Test {
 protected:
  ~PythonStacksTest() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Returns when the child has done that, and waits.
  void start(const std::function<void()>& first) {
    int ready[2];
    ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      first();
      static_cast<void>(::write(ready[1], "", 1));
      for (;;) ::pause();
    }
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  bool is_alive() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  static bool is_done(const PythonStacks& stacks, std::chrono::milliseconds limit) {
    for (const auto until = std::chrono::steady_clock::now() + limit;
         std::chrono::steady_clock::now() < until;) {
      if (stacks.is_done()) return true;
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

  pid_t pid_ = -1;
};

TEST_F(PythonStacksTest, AreWholeWhenTheAnswerIsDoneAndThoseOfThisTimeAlone) {
  start([] { prepare(answer); });
  for (int i = 0; i < 3; ++i) {
    const auto stacks = PythonStacks::ask(pid_);
    ASSERT_TRUE(stacks);
    ASSERT_TRUE(is_done(*stacks, 10s));
    EXPECT_EQ(stacks->text(1000), "line\nline\nline\n");
    EXPECT_EQ(stacks->text(12), "line\nline\n") << "whole lines";
  }
}

TEST_F(PythonStacksTest, AreOfAllThreadsByAnotherSignal) {
  start([] {
    prepare(answer);
    ::signal(kStackSignal, SIG_DFL);
  });
  const auto stacks = PythonStacks::ask(pid_, kAllStacksSignal);
  ASSERT_TRUE(stacks);
  ASSERT_TRUE(is_done(*stacks, 10s));
  EXPECT_EQ(stacks->text(1000), "line\nline\nline\n");
}

// The signal would end it.
TEST_F(PythonStacksTest, AProcessThatHasNoHandlerIsNotAsked) {
  start([] {
    prepare(answer);
    ::signal(kStackSignal, SIG_DFL);
  });
  EXPECT_FALSE(PythonStacks::ask(pid_));
  EXPECT_TRUE(is_alive());
}

// Whatever its handler does with the signal.
TEST_F(PythonStacksTest, AProcessWithoutTheHooksMemoryIsNotAsked) {
  start([] { ::signal(kStackSignal, [](int) { ::_exit(1); }); });
  EXPECT_FALSE(PythonStacks::ask(pid_));
  EXPECT_TRUE(is_alive());
}

TEST_F(PythonStacksTest, AStoppedProcessIsNotAsked) {
  start([] { prepare(answer); });
  ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
  ASSERT_EQ(::waitpid(pid_, nullptr, WUNTRACED), pid_);
  EXPECT_FALSE(PythonStacks::ask(pid_));
}

TEST_F(PythonStacksTest, AProcessThatBlocksTheSignalIsNotAsked) {
  start([] {
    prepare(answer);
    sigset_t all;
    ::sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
  });
  EXPECT_FALSE(PythonStacks::ask(pid_));
}

TEST_F(PythonStacksTest, AnAnswerThatDoesNotEndIsNotDone) {
  start([] { prepare(never_answer); });
  const auto stacks = PythonStacks::ask(pid_);
  ASSERT_TRUE(stacks);
  EXPECT_FALSE(is_done(*stacks, 50ms));
  EXPECT_FALSE(PythonStacks::ask(pid_)) << "it is at it";
}

// A look at many stacks and a request of a user may meet.
TEST_F(PythonStacksTest, ThreadsThatAskTheSameProcessGetWholeAnswers) {
  start([] { prepare(answer); });
  const auto ask_often = [this] {
    for (int i = 0; i < 20; ++i) {
      const auto stacks = PythonStacks::ask(pid_);
      if (!stacks) continue;  // the other one had it for too long
      ASSERT_TRUE(is_done(*stacks, 10s));
      EXPECT_EQ(stacks->text(1000), "line\nline\nline\n");
    }
  };
  std::thread other(ask_often);
  ask_often();
  other.join();
}

TEST_F(PythonStacksTest, AProcessIsNotAskedWhileAnAnswerOfItIsKept) {
  start([] { prepare(answer); });
  auto first = PythonStacks::ask(pid_);
  ASSERT_TRUE(first);
  ASSERT_TRUE(is_done(*first, 10s));
  EXPECT_FALSE(PythonStacks::ask(pid_));
  EXPECT_EQ(first->text(1000), "line\nline\nline\n");
  first.reset();
  EXPECT_TRUE(PythonStacks::ask(pid_));
}

TEST_F(PythonStacksTest, AProcessThatHasEndedIsDone) {
  start([] { prepare(never_answer); });
  const auto stacks = PythonStacks::ask(pid_);
  ASSERT_TRUE(stacks);
  ::kill(pid_, SIGKILL);
  EXPECT_TRUE(is_done(*stacks, 10s));
  ASSERT_EQ(::waitpid(pid_, nullptr, 0), pid_);
  EXPECT_TRUE(stacks->is_done());
  EXPECT_FALSE(PythonStacks::ask(pid_));
  pid_ = -1;
}

}  // namespace
}  // namespace ddprun::agent
