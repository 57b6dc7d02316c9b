#include "rendezvous/common/loop/timer.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

// Two timers that are ready together: what the first one's callback does to the second comes too
// late for Asio, whose handler is in the queue by then.
class TwoReadyTimers : public ::testing::Test {
 protected:
  template <typename Callback>
  void run(Callback first) {
    const auto past = Timer::Clock::now() - 1s;
    first_.arm_at(past, first);
    second_->arm_at(past + 1ms, [this] { ++calls_; });
    io_.run();
  }

  boost::asio::io_context io_;
  Timer first_{io_};
  std::optional<Timer> second_{std::in_place, io_};
  int calls_ = 0;
};

TEST_F(TwoReadyTimers, BothAreCalled) {
  run([] {});
  EXPECT_EQ(calls_, 1);
  EXPECT_FALSE(second_->is_armed());
}

TEST_F(TwoReadyTimers, ACancelledOneIsNotCalled) {
  run([this] { second_->cancel(); });
  EXPECT_EQ(calls_, 0);
  EXPECT_FALSE(second_->is_armed());
}

TEST_F(TwoReadyTimers, ADestroyedOneIsNotCalled) {
  run([this] { second_.reset(); });
  EXPECT_EQ(calls_, 0);
}

TEST_F(TwoReadyTimers, OneThatIsArmedAnewIsCalledForTheNewTimeOnly) {
  int new_calls = 0;
  run([this, &new_calls] { second_->arm(1ms, [&new_calls] { ++new_calls; }); });
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(new_calls, 1);
}

TEST(TimerTest, IsArmedUntilItsCallback) {
  boost::asio::io_context io;
  Timer timer(io);
  EXPECT_FALSE(timer.is_armed());
  bool was_armed = true;
  timer.arm(0ms, [&] { was_armed = timer.is_armed(); });
  EXPECT_TRUE(timer.is_armed());
  io.run();
  EXPECT_FALSE(was_armed);
}

TEST(TimerTest, ACallbackMayArmItAgain) {
  boost::asio::io_context io;
  Timer timer(io);
  int calls = 0;
  timer.arm(0ms, [&] {
    ++calls;
    timer.arm(0ms, [&] { ++calls; });
  });
  io.run();
  EXPECT_EQ(calls, 2);
}

TEST(TimerTest, ACallbackMayDestroyIt) {
  boost::asio::io_context io;
  auto timer = std::make_unique<Timer>(io);
  int calls = 0;
  timer->arm(0ms, [&timer, &calls, owned = std::make_shared<int>(1)] {
    timer.reset();
    calls += *owned;
  });
  io.run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ddprun
