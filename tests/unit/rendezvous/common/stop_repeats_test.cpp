#include "rendezvous/common/stop_repeats.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Meaning = StopRepeats::Meaning;

class StopRepeatsTest : public ::testing::Test {
 protected:
  Meaning sent(int signal, std::chrono::milliseconds at) {
    return repeats_.of(signal, /*is_from_kernel=*/false, kBegin + at);
  }
  Meaning from_terminal(int signal, std::chrono::milliseconds at) {
    return repeats_.of(signal, /*is_from_kernel=*/true, kBegin + at);
  }

  static constexpr std::chrono::steady_clock::time_point kBegin{5s};
  StopRepeats repeats_;
};

TEST_F(StopRepeatsTest, ASignalThatIsSentTwiceWithinASecondIsOneRequest) {
  EXPECT_EQ(sent(SIGTERM, 0ms), Meaning::kFirst);
  EXPECT_EQ(sent(SIGTERM, 0ms), Meaning::kSame);
  EXPECT_EQ(sent(SIGTERM, 999ms), Meaning::kSame);
  EXPECT_EQ(sent(SIGTERM, 1000ms), Meaning::kFurther) << "a second after the one that counted";
  EXPECT_EQ(sent(SIGTERM, 1500ms), Meaning::kSame);
}

TEST_F(StopRepeatsTest, AKeyOfTheTerminalCountsEachTime) {
  EXPECT_EQ(from_terminal(SIGINT, 0ms), Meaning::kFirst);
  EXPECT_EQ(sent(SIGINT, 1ms), Meaning::kSame) << "a parent passes it on";
  EXPECT_EQ(from_terminal(SIGINT, 200ms), Meaning::kFurther);
  EXPECT_EQ(from_terminal(SIGQUIT, 300ms), Meaning::kFurther);
}

TEST_F(StopRepeatsTest, AHangupTogetherWithAnotherSignalIsOneRequest) {
  EXPECT_EQ(from_terminal(SIGHUP, 0ms), Meaning::kFirst);
  EXPECT_EQ(from_terminal(SIGHUP, 1ms), Meaning::kSame);
  EXPECT_EQ(sent(SIGHUP, 2ms), Meaning::kSame) << "the shell passes it on";
  EXPECT_EQ(sent(SIGTERM, 3ms), Meaning::kSame) << "systemd ends the session";
}

TEST_F(StopRepeatsTest, AnotherSignalIsAFurtherRequest) {
  EXPECT_EQ(sent(SIGTERM, 0ms), Meaning::kFirst);
  EXPECT_EQ(sent(SIGINT, 1ms), Meaning::kFurther);
}

}  // namespace
}  // namespace ddprun
