#include "launcher/machine/timed_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace ddprun::cli {
namespace {

using namespace std::chrono_literals;
using ::testing::EndsWith;
using ::testing::HasSubstr;

TimedProcess::Clock::time_point in(std::chrono::milliseconds time) {
  return TimedProcess::Clock::now() + time;
}

const Environment kEnvironment{{"PATH", "/usr/bin:/bin"}};

TEST(TimedProcess, GivesWhatTheCallReturns) {
  auto trial = TimedProcess::call([] { return std::string(100'000, 'x') + "end"; });
  ASSERT_TRUE(trial);
  const TimedProcess::End end = trial->finish(in(30s));
  EXPECT_TRUE(end.was_in_time);
  EXPECT_TRUE(end.status.is_success());
  EXPECT_THAT(end.output, EndsWith("xend"));
  EXPECT_LE(end.output.size(), TimedProcess::kOutputMax);
}

TEST(TimedProcess, GivesUpACallThatHangs) {
  auto trial = TimedProcess::call([] {
    for (;;) ::pause();
    return std::string();
  });
  ASSERT_TRUE(trial);
  const auto began = TimedProcess::Clock::now();
  EXPECT_FALSE(trial->finish(in(50ms)).was_in_time);
  EXPECT_LT(TimedProcess::Clock::now() - began, 2s);
}

TEST(TimedProcess, OneThatEndedBeforeTheDeadlineWasInTimeWheneverItIsAskedFor) {
  auto trial = TimedProcess::call([] { return std::string("done"); });
  ASSERT_TRUE(trial);
  auto other = TimedProcess::command({"/bin/sh", "-c", "exit 0"}, kEnvironment);
  ASSERT_TRUE(other);
  ASSERT_TRUE(other->finish(in(30s)).was_in_time);
  // It has written long ago; only its end may be to come.
  EXPECT_THAT(trial->finish(in(30s)).output, HasSubstr("done"));
}

TEST(TimedProcess, GivesBothOutputsOfACommandAndHowItEnded) {
  auto trial =
      TimedProcess::command({"/bin/sh", "-c", "echo one; echo two >&2; exit 3"}, kEnvironment);
  ASSERT_TRUE(trial);
  const TimedProcess::End end = trial->finish(in(30s));
  EXPECT_EQ(end.output, "one\ntwo\n");
  EXPECT_EQ(end.status, ExitStatus::exited(3));
  auto missing = TimedProcess::command({"/no/such/program"}, kEnvironment);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->finish(in(30s)).status, ExitStatus::exited(127));
}

TEST(TimedProcess, LeavesNothingOfACommandThatTakesTooLong) {
  auto trial = TimedProcess::command({"/bin/sh", "-c", "sleep 1000 & echo $!; wait"}, kEnvironment);
  ASSERT_TRUE(trial);
  const TimedProcess::End end = trial->finish(in(2s));  // which a shell may need to say its word
  EXPECT_FALSE(end.was_in_time);
  const pid_t child = std::atoi(end.output.c_str());
  ASSERT_GT(child, 1) << end.output;
  const auto is_gone = [&] { return ::kill(child, 0) != 0 && errno == ESRCH; };
  for (const auto until = in(10s); !is_gone() && TimedProcess::Clock::now() < until;) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(is_gone());
}

}  // namespace
}  // namespace ddprun::cli
