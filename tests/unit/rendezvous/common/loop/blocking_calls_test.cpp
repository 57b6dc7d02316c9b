// Calls that hang, beside an event loop that does not.
#include "rendezvous/common/loop/blocking_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/run_until.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;

class Calls : public testing::Test {
 protected:
  bool eventually(const std::function<bool()>& holds) { return run_until(loop_, holds); }

  boost::asio::io_context loop_;
  std::unique_ptr<BlockingCalls> calls_ =
      std::make_unique<BlockingCalls>(loop_.get_executor(), "ddprun-test");
};

TEST_F(Calls, AreAnsweredInTheirOrderOnTheEventLoop) {
  std::vector<int> answers;
  for (int i = 0; i < 3; ++i) {
    calls_->run<int>([i] { return i; },
                     [&](int answer) {
                       EXPECT_TRUE(loop_.get_executor().running_in_this_thread());
                       answers.push_back(answer);
                     });
  }
  EXPECT_THAT(answers, ElementsAre()) << "never from within run()";
  EXPECT_TRUE(eventually([&] { return answers.size() == 3; }));
  EXPECT_THAT(answers, ElementsAre(0, 1, 2));
  EXPECT_EQ(calls_->busy_for(), std::nullopt);
}

TEST_F(Calls, OneThatHangsIsGivenUpAndItsLateAnswerIsDroppedByTheThread) {
  struct Answer {
    ~Answer() { destroyed_by.set_value(std::this_thread::get_id()); }
    std::promise<std::thread::id> destroyed_by;
  };
  std::promise<void> answers;
  auto answer = std::make_shared<Answer>();
  auto destroyed_by = answer->destroyed_by.get_future();
  int given_up = 0;
  calls_->run<std::shared_ptr<Answer>>(
      10ms,
      [hangs = answers.get_future().share(), answer]() mutable {
        hangs.wait();
        return std::move(answer);
      },
      [&](std::optional<std::shared_ptr<Answer>> none) {
        EXPECT_FALSE(none);
        given_up += 1;
      });
  answer.reset();
  EXPECT_TRUE(eventually([&] { return given_up == 1; }));
  std::optional<int> next;
  calls_->run<int>([] { return 1; }, [&](int one) { next = one; });
  answers.set_value();
  EXPECT_TRUE(eventually([&] { return next == 1; }));
  EXPECT_EQ(given_up, 1);
  EXPECT_NE(destroyed_by.get(), std::this_thread::get_id());
}

TEST_F(Calls, TheirOwnerDoesNotWaitForOneThatHangsAndHearsNothingOfIt) {
  const auto may_end = std::make_shared<std::promise<void>>();
  auto hangs = may_end->get_future().share();
  const auto has_begun = std::make_shared<std::promise<void>>();
  calls_->run<int>(
      1h,
      [hangs, has_begun] {
        has_begun->set_value();
        hangs.wait();
        return 1;
      },
      [](std::optional<int>) { ADD_FAILURE() << "nobody is there to be told"; });
  calls_->run<int>([] { return 2; }, [](int) { ADD_FAILURE() << "nor of those behind it"; });
  has_begun->get_future().wait();
  EXPECT_TRUE(calls_->busy_for());
  calls_.reset();
  may_end->set_value();
  loop_.run_for(10ms);
}

TEST_F(Calls, AnAnswerUnderWayToAnOwnerThatIsGoneIsDropped) {
  std::promise<void> begun;
  calls_->run<int>(
      [&begun] {
        begun.set_value();
        return 1;
      },
      [](int) { ADD_FAILURE() << "nobody is there to be told"; });
  begun.get_future().wait();
  while (calls_->busy_for()) std::this_thread::yield();
  calls_.reset();
  loop_.restart();
  loop_.run_for(10ms);
}

}  // namespace
}  // namespace ddprun
