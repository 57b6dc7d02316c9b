// What the main threads of workers do, looked at several times; the workers are functions.
#include "agent/supervisor/stack_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/run_until.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string in_line(int line) {
  return "Current thread 0x00007f9c0a2f0040 (most recent call first):\n  File "
         "\"/home/me/train.py\", "
         "line " +
         std::to_string(line) + " in main\n";
}

class StackSamplesTest : public ::testing::Test {
 protected:
  StackSamples& samples() {
    if (!samples_) samples_ = std::make_unique<StackSamples>(loop_, ways_);
    return *samples_;
  }
  static StackSamples::Done into(std::vector<std::vector<RankSamples>>& answers) {
    return [&answers](std::vector<RankSamples> answer) { answers.push_back(std::move(answer)); };
  }
  bool run_until(const std::function<bool()>& condition) {
    return ddprun::run_until(loop_, condition);
  }
  // Whatever is left to do.
  void run_rest() {
    loop_.restart();
    loop_.run_for(20ms);
  }

  StackSamples::Ways ways_{.text_of = [](pid_t pid) { return in_line(pid); },
                           .pause_min = 0ms,
                           .pause_max = 0ms,
                           .limit = 10s};
  // The thread may live longer than a test, so what it uses is shared.
  const std::shared_ptr<std::atomic<int>> looks_ = std::make_shared<std::atomic<int>>(0);
  boost::asio::io_context loop_;
  std::unique_ptr<StackSamples> samples_;
  std::vector<std::vector<RankSamples>> answers_;
};

TEST_F(StackSamplesTest, CountsTheStacksOfEachWorker) {
  ways_.text_of = [looks = looks_](pid_t pid) {
    return in_line(pid == 11 ? 4 : 10 + (*looks)++ % 2);
  };
  samples().take({{3, 11}, {5, 12}}, into(answers_));
  EXPECT_THAT(answers_, IsEmpty()) << "not from within the call";
  ASSERT_TRUE(run_until([this] { return !answers_.empty(); }));
  const std::vector<RankSamples> expected{
      {3, {{"main (train.py:4)\n", 32}}},
      {5, {{"main (train.py:10)\n", 16}, {"main (train.py:11)\n", 16}}}};
  EXPECT_EQ(answers_[0], expected);
  run_rest();
  EXPECT_THAT(answers_, SizeIs(1));
}

TEST_F(StackSamplesTest, OfNoWorkerNothingIsSaidLater) {
  samples().take({}, into(answers_));
  EXPECT_THAT(answers_, IsEmpty()) << "not from within the call";
  ASSERT_TRUE(run_until([this] { return !answers_.empty(); }));
  EXPECT_THAT(answers_[0], IsEmpty());
}

TEST_F(StackSamplesTest, ARequestWhileOneRunsGetsNothingAndDoesNotDisturbIt) {
  std::vector<std::vector<RankSamples>> second;
  samples().take({{3, 11}}, into(answers_));
  samples().take({{4, 12}}, into(second));
  EXPECT_THAT(second, IsEmpty()) << "not from within the call";
  ASSERT_TRUE(run_until([&] { return !second.empty(); }));
  EXPECT_THAT(second[0], IsEmpty());
  ASSERT_TRUE(run_until([this] { return !answers_.empty(); }));
  EXPECT_EQ(answers_[0], (std::vector<RankSamples>{{3, {{"main (train.py:11)\n", 32}}}}));
  run_rest();
  EXPECT_THAT(second, SizeIs(1));
  EXPECT_THAT(answers_, SizeIs(1));
}

TEST_F(StackSamplesTest, WhatEndsEarlyAnswersWithWhatThereIs) {
  ways_.text_of = [looks = looks_](pid_t pid) {
    ++*looks;
    return in_line(pid);
  };
  samples().take({{3, 11}}, into(answers_));
  ASSERT_TRUE(run_until([this] { return *looks_ >= 4; }));
  samples().finish();
  ASSERT_THAT(answers_, SizeIs(1));
  ASSERT_THAT(answers_[0], SizeIs(1));
  ASSERT_THAT(answers_[0][0].stacks, SizeIs(1));
  EXPECT_GE(answers_[0][0].stacks[0].count, 1);
  EXPECT_LT(answers_[0][0].stacks[0].count, 32);
  samples().finish();
  run_rest();
  EXPECT_THAT(answers_, SizeIs(1));
}

// The answer to a look that was under way is not taken for one to the next request.
TEST_F(StackSamplesTest, TheNextRequestHasItsOwnWorkers) {
  std::promise<void> begun;
  std::promise<void> may_end;
  ways_.text_of = [&, is_first = std::make_shared<bool>(true)](pid_t pid) {
    if (std::exchange(*is_first, false)) {
      begun.set_value();
      may_end.get_future().wait();
    }
    return in_line(pid);
  };
  samples().take({{3, 11}, {4, 12}}, into(answers_));
  const auto has_begun = begun.get_future();
  ASSERT_TRUE(run_until([&] { return has_begun.wait_for(0s) == std::future_status::ready; }));
  samples().finish();
  EXPECT_EQ(answers_.at(0), (std::vector<RankSamples>{{3, {}}, {4, {}}}));
  samples().take({{5, 13}}, into(answers_));
  may_end.set_value();
  ASSERT_TRUE(run_until([this] { return answers_.size() == 2; }));
  EXPECT_EQ(answers_[1], (std::vector<RankSamples>{{5, {{"main (train.py:13)\n", 32}}}}));
}

TEST_F(StackSamplesTest, AnAnswerMayAskAgain) {
  samples().take({{3, 11}}, [this](std::vector<RankSamples> answer) {
    answers_.push_back(std::move(answer));
    samples().take({{3, 11}}, into(answers_));
  });
  samples().finish();
  EXPECT_THAT(answers_, SizeIs(1));
  ASSERT_TRUE(run_until([this] { return answers_.size() == 2; }));
  EXPECT_EQ(answers_[1].at(0).stacks.at(0).count, 32);
}

// Something of the kernel holds the thread: the rank is told of all the same, without a place.
TEST_F(StackSamplesTest, AThreadThatHangsHoldsNoAnswer) {
  ways_.limit = 30ms;
  const auto may_end = std::make_shared<std::promise<void>>();
  const auto hangs = may_end->get_future().share();
  ways_.text_of = [hangs](pid_t) {
    hangs.wait();
    return std::string();
  };
  samples().take({{3, 11}}, into(answers_));
  ASSERT_TRUE(run_until([this] { return !answers_.empty(); }));
  EXPECT_EQ(answers_[0], (std::vector<RankSamples>{{3, {}}}));
  samples().take({{3, 11}}, into(answers_));
  ASSERT_TRUE(run_until([this] { return answers_.size() == 2; })) << "the next one likewise";
  may_end->set_value();
  run_rest();
  EXPECT_THAT(answers_, SizeIs(2));
}

// Its agent ends.
TEST_F(StackSamplesTest, AnswersNothingOnceItIsDestroyed) {
  ways_.text_of = [looks = looks_](pid_t pid) {
    ++*looks;
    return in_line(pid);
  };
  samples().take({{3, 11}}, into(answers_));
  ASSERT_TRUE(run_until([this] { return *looks_ > 0; }));
  samples().take({{3, 11}}, into(answers_));
  samples_.reset();
  run_rest();
  EXPECT_THAT(answers_, IsEmpty());
}

TEST_F(StackSamplesTest, AWorkerThatHasDiedHasNoStacks) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ways_.text_of = &StackSamples::text_of;
  samples().take({{3, child}}, into(answers_));
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(StackSamples::text_of(child), "") << "a zombie";
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(StackSamples::text_of(child), "") << "it is gone";
  ASSERT_TRUE(run_until([this] { return !answers_.empty(); }));
  EXPECT_EQ(answers_[0], (std::vector<RankSamples>{{3, {}}}));
}

}  // namespace
}  // namespace ddprun::agent
