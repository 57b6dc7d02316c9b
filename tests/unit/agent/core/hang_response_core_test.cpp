#include "agent/core/hang_response_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::agent::hang_response {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CaseId kFirst{1};
constexpr CaseId kSecond{2};

rdzv::Hung hung(std::vector<int> ranks) {
  rdzv::Hung found;
  found.ranks = std::move(ranks);
  return found;
}

template <typename T>
T only(const std::vector<Action>& actions) {
  EXPECT_THAT(actions, SizeIs(1));
  return std::get<T>(actions.at(0));
}

class HangResponseCore : public ::testing::Test {
 protected:
  // Up to the question whether it is still so.
  void take_stacks_of(CaseId id, const std::vector<int>& ranks) {
    core.step(StacksTaken{id});
    core.step(StacksTaken{id});
    core.step(Reported{id, {ranks}});
  }

  Core core{/*ends=*/true};
};

TEST_F(HangResponseCore, TakesTheStacksOfThoseThatHangThenOfAllOthersAndEndsThem) {
  EXPECT_EQ(only<TakeStacks>(core.step(Found{kFirst, hung({3, 5})})),
            (TakeStacks{kFirst, {3, 5}, {}}));
  EXPECT_EQ(only<TakeStacks>(core.step(StacksTaken{kFirst})), (TakeStacks{kFirst, {}, {3, 5}}));
  EXPECT_EQ(only<Report>(core.step(StacksTaken{kFirst})).hung.ranks, (std::vector{3, 5}));
  EXPECT_EQ(only<Confirm>(core.step(Reported{kFirst, {{3}, {5}}})).id, kFirst);
  EXPECT_THAT(only<End>(core.step(Confirmed{kFirst, true})).ranks,
              ElementsAre(ElementsAre(3), ElementsAre(5)));
  EXPECT_EQ(only<Forget>(core.step(EndAnswered{kFirst, {3, 5}})).id, kFirst);
}

TEST_F(HangResponseCore, EndsNothingThatNeedNotEnd) {
  Core reports(/*ends=*/false);
  reports.step(Found{kFirst, hung({3})});
  reports.step(StacksTaken{kFirst});
  reports.step(StacksTaken{kFirst});
  EXPECT_EQ(only<Forget>(reports.step(Reported{kFirst, {{3}}})).id, kFirst);

  rdzv::Hung guess = hung({3});
  guess.basis = rdzv::Hung::Basis::kAutomatic;
  core.step(Found{kFirst, guess});
  core.step(StacksTaken{kFirst});
  core.step(StacksTaken{kFirst});
  EXPECT_EQ(only<Forget>(core.step(Reported{kFirst, {{3}}})).id, kFirst);

  core.step(Found{kSecond, hung({3})});
  take_stacks_of(kSecond, {3});
  const auto actions = core.step(Confirmed{kSecond, false});
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_THAT(std::get<Warn>(actions[0]).sentence, HasSubstr("rank 3 went on by itself"));
}

TEST_F(HangResponseCore, OfAWaitThatLastsOneStackIsShown) {
  rdzv::WaitingFor wait;
  wait.missing = {4, 6};
  EXPECT_EQ(only<TakeStacks>(core.step(Waits{kFirst, wait})), (TakeStacks{kFirst, {4}, {}}));
  const auto actions = core.step(StacksTaken{kFirst});
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(std::get<ReportWait>(actions[0]).wait.missing, wait.missing);
  EXPECT_EQ(std::get<Forget>(actions[1]).id, kFirst);
}

TEST_F(HangResponseCore, TheNextCaseBeginsWhenTheFirstTakesNoMoreStacks) {
  core.step(Found{kFirst, hung({1})});
  EXPECT_THAT(core.step(Found{kSecond, hung({2})}), IsEmpty());
  core.step(StacksTaken{kFirst});
  core.step(StacksTaken{kFirst});
  const auto actions = core.step(Reported{kFirst, {{1}}});
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(std::get<Confirm>(actions[0]).id, kFirst);
  EXPECT_EQ(std::get<TakeStacks>(actions[1]), (TakeStacks{kSecond, {2}, {}}));
}

// One timer for both would forget the first one.
TEST_F(HangResponseCore, TwoVerdictsAtOnceAreBothFollowedThoughAnswersAreLost) {
  core.step(Found{kFirst, hung({1})});
  core.step(Found{kSecond, hung({2})});
  take_stacks_of(kFirst, {1});
  core.step(Confirmed{kFirst, true});
  EXPECT_EQ(only<ArmTimer>(core.step(EndAnswered{kFirst, {}})), (ArmTimer{kFirst, kAgain}));
  take_stacks_of(kSecond, {2});
  EXPECT_EQ(only<ArmTimer>(core.step(Confirmed{kSecond, std::nullopt})),
            (ArmTimer{kSecond, kAgain}));
  EXPECT_EQ(only<End>(core.step(TimerExpired{kFirst})).id, kFirst);
  EXPECT_EQ(only<Confirm>(core.step(TimerExpired{kSecond})).id, kSecond);
}

TEST_F(HangResponseCore, AsksAgainForRanksThatNoNodeHasAndThenSaysSo) {
  core.step(Found{kFirst, hung({1, 2})});
  take_stacks_of(kFirst, {1, 2});
  core.step(Confirmed{kFirst, true});
  const auto first = core.step(EndAnswered{kFirst, {2}, {{{2}, "b12 was started so"}}});
  ASSERT_THAT(first, SizeIs(2));
  EXPECT_EQ(std::get<Warn>(first[0]).sentence, "rank 2 will not be killed: b12 was started so");
  for (int attempt = 2; attempt < kAttempts; ++attempt) {
    EXPECT_THAT(only<End>(core.step(TimerExpired{kFirst})).ranks, ElementsAre(ElementsAre(1)));
    EXPECT_EQ(only<ArmTimer>(core.step(EndAnswered{kFirst, {}})).id, kFirst);
  }
  core.step(TimerExpired{kFirst});
  const auto last = core.step(EndAnswered{kFirst, {}});
  ASSERT_THAT(last, SizeIs(2));
  EXPECT_EQ(std::get<Warn>(last[0]).sentence,
            "rank 1 will not be killed: no node says that it has them");
  EXPECT_EQ(std::get<Forget>(last[1]).id, kFirst);
}

TEST_F(HangResponseCore, WhatIsHeldByADebuggerIsNotKilled) {
  core.step(Found{kFirst, hung({1})});
  take_stacks_of(kFirst, {1});
  for (int attempt = 1; attempt < kAttempts; ++attempt) {
    EXPECT_EQ(only<ArmTimer>(core.step(Confirmed{kFirst, std::nullopt})).id, kFirst);
    core.step(TimerExpired{kFirst});
  }
  EXPECT_EQ(std::get<Warn>(core.step(Confirmed{kFirst, std::nullopt}).at(0)).sentence,
            "a debugger holds a rank: rank 1 will not be killed");
}

TEST_F(HangResponseCore, AfterTheRoundNothingIsLeftOfIt) {
  core.step(Found{kFirst, hung({1})});
  core.step(Found{kSecond, hung({2})});
  EXPECT_THAT(core.step(RoundOver{}), SizeIs(2));
  EXPECT_THAT(core.step(StacksTaken{kFirst}), IsEmpty());
  EXPECT_EQ(only<TakeStacks>(core.step(Found{CaseId{3}, hung({5})})).id, CaseId{3});
}

TEST_F(HangResponseCore, TakesNoMoreCasesThanItCanFollow) {
  for (std::uint64_t id = 1; id <= kCasesMax; ++id) core.step(Found{CaseId{id}, hung({1})});
  EXPECT_EQ(only<Forget>(core.step(Found{CaseId{99}, hung({1})})).id, CaseId{99});
}

// ---- the table in the header

TEST(HangResponseCoreTable, AnswersEveryEventInEveryStageAsItSays) {
  constexpr const char* kNames[] = {"TakeStacks", "Report", "ReportWait", "Confirm",
                                    "End",        "Warn",   "ArmTimer",   "Forget"};
  static_assert(std::size(kNames) == std::variant_size_v<Action>);
  const auto names_of = [&](const std::vector<Action>& actions) {
    std::string text;
    for (const Action& each : actions)
      text += (text.empty() ? "" : " ") + std::string(kNames[each.index()]);
    return text;
  };
  // The case is the second: the first one takes stacks, or has had its time.
  const auto in_stage = [](int stage) {
    Core core(/*ends=*/true);
    core.step(Found{kFirst, hung({1})});
    core.step(Found{kSecond, hung({2})});
    if (stage == 0) return core;
    for (const CaseId id : {kFirst, kSecond}) {
      if (id == kSecond && stage == 1) return core;
      core.step(StacksTaken{id});
      if (id == kSecond && stage == 2) return core;
      core.step(StacksTaken{id});
      core.step(Reported{id, {{id == kFirst ? 1 : 2}}});
    }
    if (stage == 4) core.step(Confirmed{kSecond, true});
    return core;
  };
  struct Row {
    Event event;
    const char* answers[5];  // Queued, First, Others, Confirming, Ending
  };
  const Row table[] = {
      {StacksTaken{kSecond}, {"", "TakeStacks", "Report", "", ""}},
      {Reported{kSecond, {{2}}}, {"", "", "Confirm", "", ""}},
      {Confirmed{kSecond, true}, {"", "", "", "End", ""}},
      {Confirmed{kSecond, false}, {"", "", "", "Warn Forget", ""}},
      {Confirmed{kSecond, std::nullopt}, {"", "", "", "ArmTimer", ""}},
      {EndAnswered{kSecond, {2}}, {"", "", "", "", "Forget"}},
      {EndAnswered{kSecond, {}}, {"", "", "", "", "ArmTimer"}},
      {TimerExpired{kSecond}, {"", "", "", "Confirm", "End"}},
      {RoundOver{},
       {"Forget Forget", "Forget Forget", "Forget Forget", "Forget Forget", "Forget Forget"}},
  };
  for (const Row& row : table) {
    for (int stage = 0; stage < 5; ++stage) {
      Core core = in_stage(stage);
      EXPECT_EQ(names_of(core.step(row.event)), row.answers[stage])
          << "event " << row.event.index() << " in stage " << stage;
    }
  }
}

}  // namespace
}  // namespace ddprun::agent::hang_response
