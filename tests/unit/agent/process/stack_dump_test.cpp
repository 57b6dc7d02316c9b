// Stacks of workers before they are killed: what Supervisor relies on, with a debugger of our own.
#include "agent/process/stack_dump.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

  std::unique_ptr<StackDump> make(std::chrono::milliseconds limit, StackDump::Done done) {
    const Environment environment{{"PATH", folder_.path() + ":/usr/bin:/bin"}};
    return std::make_unique<StackDump>(io_, std::vector<StackDump::Worker>{{0, ::getpid(), ""}},
                                       environment, limit, std::move(done));
  }

  // Of the debugger, when it runs; 0: it does not.
  pid_t debugger() {
    for (const auto until = Clock::now() + kDeadline; Clock::now() < until;) {
      pid_t pid = 0;
      if (std::ifstream(folder_ / "pid") >> pid) return pid;
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

// Whoever is called destroys it, as the Supervisor does.
TEST_F(StackDumpTest, CallsBackOnceWhenItsDebuggerEndsAtTheLimit) {
  constexpr auto kLimit = 1s;
  int calls = 0;
  std::unique_ptr<StackDump> dump;
  dump = make(kLimit, [&](const auto&) {
    ++calls;
    dump.reset();
  });
  const auto limit = Clock::now() + kLimit;
  const pid_t pid = debugger();
  ASSERT_NE(pid, 0);
  if (calls > 0) GTEST_SKIP() << "this machine is too slow for the limit";
  end(pid);
  std::this_thread::sleep_until(limit);  // both are ready now
  io_.restart();
  io_.run_for(kDeadline);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ddprun::agent
