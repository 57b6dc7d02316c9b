// Stacks of workers before they are killed: what Supervisor relies on, with a debugger of our own.
#include "agent/process/stack_dump.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/file_text.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = 10s;

// A "gdb" that says its pid, and ends when it is told to.
class StackDumpTest : public ::testing::Test {
 protected:
  StackDumpTest() {
    folder_.write("gdb",
                  "#!/bin/sh\ncd " + folder_.path() +
                      "\necho $$ > aside\nmv aside pid\nwhile [ ! -e go ]; do sleep 0.01; done\n",
                  0755);
  }

  std::unique_ptr<StackDump> make(StackDump::Done done) {
    const Environment environment{{"PATH", folder_.path() + ":/usr/bin:/bin"}};
    return std::make_unique<StackDump>(io_, std::vector<StackDump::Worker>{{0, ::getpid(), ""}},
                                       StackDump::Threads::kMain, environment, std::move(done));
  }

  // Of the debugger, when it runs; 0: it does not.
  pid_t debugger() {
    for (const auto until = Clock::now() + kDeadline; Clock::now() < until;) {
      pid_t pid = 0;
      if (std::ifstream(folder_ / "pid") >> pid) return pid;
      io_.restart();
      io_.run_for(1ms);
    }
    return 0;
  }

  // The loop is not told yet.
  void end(pid_t debugger) {
    folder_.write("go", "");
    siginfo_t info{};
    EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(debugger), &info, WEXITED | WNOWAIT), 0);
  }

  const TemporaryTree folder_;
  boost::asio::io_context io_;
};

// The callback destroys it, as the class Workers does.
TEST_F(StackDumpTest, CallsBackOnceWhenItsDebuggerHasEnded) {
  int calls = 0;
  std::unique_ptr<StackDump> dump;
  dump = make([&] {
    ++calls;
    EXPECT_EQ(dump->so_far(1000).size(), 1U);
    dump.reset();
  });
  const pid_t pid = debugger();
  ASSERT_NE(pid, 0);
  EXPECT_EQ(calls, 0);
  end(pid);
  io_.restart();
  io_.run_for(kDeadline);
  EXPECT_EQ(calls, 1);
}

// gdb reads the symbols of a library once for all processes that have it.
TEST_F(StackDumpTest, OneGdbIsForAllWorkers) {
  folder_.write("gdb", "#!/bin/sh\nprintf '%s\\n' started \"$@\" >> " + (folder_ / "told") + "\n",
                0755);
  const pid_t other = ::fork();
  if (other == 0) {
    ::pause();
    ::_exit(0);
  }
  const Environment environment{{"PATH", folder_.path() + ":/usr/bin:/bin"}};
  bool is_done = false;
  const StackDump dump(io_, {{0, ::getpid(), ""}, {1, other, ""}}, StackDump::Threads::kAllAtEnd,
                       environment, [&] { is_done = true; });
  for (const auto until = Clock::now() + kDeadline; !is_done && Clock::now() < until;) {
    io_.restart();
    io_.run_for(1ms);
  }
  EXPECT_TRUE(is_done);
  const std::string told = file_text(folder_ / "told");
  EXPECT_EQ(told.find("started"), told.rfind("started"));
  for (const pid_t pid : {::getpid(), other}) {
    EXPECT_NE(told.find("\nattach " + std::to_string(pid) + "\n"), std::string::npos) << told;
  }
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

// The time for stacks is over in the moment in which the debugger ends: what there is is taken, and
// the dump is gone when the loop gets to the debugger's end.
TEST_F(StackDumpTest, WhatThereIsCanBeTakenBeforeTheDebuggerHasEnded) {
  int calls = 0;
  auto dump = make([&] { ++calls; });
  const pid_t pid = debugger();
  ASSERT_NE(pid, 0);
  end(pid);
  const auto accounts = dump->so_far(1000);
  ASSERT_EQ(accounts.size(), 1U);
  EXPECT_NE(accounts[0].text.find("process " + std::to_string(::getpid())), std::string::npos);
  dump.reset();
  io_.restart();
  io_.run_for(100ms);
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace ddprun::agent
