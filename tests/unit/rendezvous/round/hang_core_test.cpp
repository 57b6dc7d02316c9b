// The rules by which ranks wait for others or hang, one case per row of the table in hang_core.h.
#include "rendezvous/round/hang_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using record::Operation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr HangRules kRules{.patience = 1s};

// A rank of a group of all ranks that is in a call.
RankCalls in_call(int rank, int world, std::uint64_t number, std::chrono::nanoseconds since = 5s,
                  record::Call call = {.operation = Operation::kAllReduce, .type = 6}) {
  GroupCalls group{"ddprun", record::id_of("ddprun"), static_cast<std::uint32_t>(world),
                   static_cast<std::uint32_t>(rank), number};
  group.at = GroupCall{call, number, /*is_over=*/false, since};
  group.since_entry = since;
  return {.rank = rank, .groups = {group}};
}

// One whose last call is over.
RankCalls after_call(int rank, int world, std::uint64_t number) {
  RankCalls made = in_call(rank, world, number);
  made.groups[0].at->is_over = true;
  return made;
}

TEST(HangCoreTest, WaitsForThoseThatHaveNotEnteredTheCall) {
  const auto found = find_hangs(
      {in_call(0, 4, 7, 3s), after_call(1, 4, 6), in_call(2, 4, 7, 5s), after_call(3, 4, 6)}, 4,
      kRules);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.waits[0].missing, ElementsAre(1, 3));
  EXPECT_THAT(found.waits[0].waiting, ElementsAre(0, 2));
  EXPECT_EQ(found.waits[0].number, 7U);
  EXPECT_EQ(found.waits[0].waited, 5s);
  EXPECT_THAT(found.hung, IsEmpty()) << "a rank may evaluate as long as it likes";
  EXPECT_EQ(
      sentence(found.waits[0]),
      "ranks 1 and 3 have not come to all_reduce (call 7 of ddprun), where ranks 0 and 2 wait");
}

TEST(HangCoreTest, SaysNothingBeforeThePatienceIsOver) {
  EXPECT_THAT(find_hangs({in_call(0, 2, 7, 900ms), after_call(1, 2, 6)}, 2, kRules).waits,
              IsEmpty());
}

TEST(HangCoreTest, SaysNothingWhenAllAreInTheCallAndItMatches) {
  const auto found = find_hangs({in_call(0, 2, 7, 100s), in_call(1, 2, 7, 100s)}, 2, kRules);
  EXPECT_THAT(found.waits, IsEmpty());
  EXPECT_THAT(found.hung, IsEmpty());
}

TEST(HangCoreTest, SaysNothingOfOneThatHasComeAndGone) {
  EXPECT_THAT(find_hangs({in_call(0, 2, 7), after_call(1, 2, 7)}, 2, kRules).waits, IsEmpty())
      << "the root of a broadcast leaves before the others";
}

TEST(HangCoreTest, AStoppedRankHangsIfOthersWaitForIt) {
  RankCalls stopped = after_call(1, 2, 6);
  stopped.state = RankState::kStopped;
  const auto found = find_hangs({in_call(0, 2, 7), stopped}, 2, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kStopped);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
  EXPECT_THAT(sentence(found.hung[0]), HasSubstr("rank 1 is stopped by a signal"));
  EXPECT_THAT(find_hangs({after_call(0, 2, 6), stopped}, 2, kRules).hung, IsEmpty())
      << "nobody waits";
}

TEST(HangCoreTest, AStoppedRankHangsInsideOfTheCallToo) {
  RankCalls stopped = in_call(1, 3, 7);
  stopped.state = RankState::kStopped;
  const auto found = find_hangs({in_call(0, 3, 7), stopped, in_call(2, 3, 7)}, 3, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(sentence(found.hung[0]),
            "rank 1 is stopped by a signal, and ranks 0 and 2 wait for it in all_reduce (call 7 of "
            "ddprun)");
  EXPECT_THAT(find_hangs({after_call(0, 3, 6), stopped, after_call(2, 3, 6)}, 3, kRules).hung,
              IsEmpty())
      << "it has come first, and nobody waits for it";
}

TEST(HangCoreTest, ARankThatWasStoppedBeforeItCouldWriteHangsIfAllAreAwaited) {
  for (const RankState state : {RankState::kStopped, RankState::kFrozen, RankState::kRuns}) {
    const auto found =
        find_hangs({in_call(0, 3, 7), {.rank = 1, .state = state}, in_call(2, 3, 7)}, 3, kRules);
    if (state == RankState::kRuns) {
      EXPECT_THAT(found.waits, IsEmpty()) << "another program, perhaps";
      EXPECT_THAT(found.hung, IsEmpty());
    } else {
      ASSERT_EQ(found.hung.size(), 1U);
      EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
      EXPECT_THAT(found.hung[0].waiting, ElementsAre(0, 2));
    }
  }
  EXPECT_THAT(
      find_hangs({in_call(0, 2, 7), {.rank = 1, .state = RankState::kStopped}}, 3, kRules).hung,
      IsEmpty())
      << "of a smaller group nobody knows whether it is in it";
}

TEST(HangCoreTest, StoppedRanksAreOneVerdict) {
  std::vector<RankCalls> ranks{in_call(0, 3, 7), after_call(1, 3, 6), after_call(2, 3, 6)};
  ranks[1].state = ranks[2].state = RankState::kStopped;
  const auto found = find_hangs(ranks, 3, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(sentence(found.hung[0]),
            "ranks 1 and 2 are stopped by a signal, and rank 0 waits for them in all_reduce (call "
            "7 of ddprun)");
}

TEST(HangCoreTest, AFrozenRankHangsIfOthersWaitForIt) {
  RankCalls frozen = after_call(1, 2, 6);
  frozen.state = RankState::kFrozen;
  const auto found = find_hangs({in_call(0, 2, 7), frozen}, 2, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kFrozen);
  EXPECT_THAT(sentence(found.hung[0]), HasSubstr("rank 1 is frozen by its control group"));
}

TEST(HangCoreTest, ARankInTheKernelHangsOnlyIfItHasNotRunForLong) {
  RankCalls held = after_call(1, 2, 6);
  held.state = RankState::kUninterruptible;
  const auto hung = [&](std::chrono::nanoseconds held_for, HangRules rules) {
    held.held_for = held_for;
    return find_hangs({in_call(0, 2, 7, 300s), held}, 2, rules).hung;
  };
  EXPECT_THAT(hung(kInKernelForGood, kRules), IsEmpty()) << "a file server may be slow";
  const auto found = hung(kInKernelForGood + 1ns, kRules);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].why, Hung::Why::kUninterruptible);
  EXPECT_THAT(sentence(found[0]), HasSubstr("rank 1 does not return from the kernel"));
  EXPECT_THAT(hung(kInKernelForGood + 1ns, {.patience = 1s, .gap = 5s}), IsEmpty());
  EXPECT_THAT(hung(kInKernelForGood + 1ns, {.patience = 150s}), IsEmpty()) << "steps take 30 s";
}

// A rank that waits in one call of each of these groups (name, number, whether it has entered it).
struct In {
  std::string group;
  std::uint64_t number = 0;
  bool is_in = true;
};
RankCalls in_groups(int rank, std::chrono::nanoseconds since, const std::vector<In>& calls) {
  RankCalls made{.rank = rank, .all_wait = true};
  for (const In& in : calls) {
    const std::uint64_t number = in.is_in ? in.number : in.number - 1;
    GroupCalls group{in.group, record::id_of(in.group), 2, 0, number};
    group.at = GroupCall{{.operation = Operation::kAllReduce}, number, !in.is_in, since};
    group.since_entry = since;
    made.groups.push_back(group);
  }
  return made;
}

TEST(HangCoreTest, RanksThatWaitForEachOtherHang) {
  // 0 waits for 1 in a, 1 for 2 in b, 2 for 0 in c; 3 waits for 0 in d, and is not to blame.
  const auto ranks = [](std::chrono::nanoseconds since) {
    return std::vector<RankCalls>{
        in_groups(0, since, {{"a", 5, true}, {"c", 9, false}, {"d", 2, false}}),
        in_groups(1, since, {{"a", 5, false}, {"b", 3, true}}),
        in_groups(2, since, {{"b", 3, false}, {"c", 9, true}}),
        in_groups(3, since, {{"d", 2, true}})};
  };
  const auto found = find_hangs(ranks(30s), 8, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kCycle);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_EQ(sentence(found.hung[0]),
            "ranks 0, 1 and 2 wait for each other: rank 0 in all_reduce (call 5 of a) for rank 1, "
            "rank 1 in all_reduce (call 3 of b) for rank 2, rank 2 in all_reduce (call 9 of c) for "
            "rank 0");
  EXPECT_THAT(find_hangs(ranks(kForGood), 8, kRules).hung, IsEmpty());
  auto without = ranks(30s);
  without[2].groups[1].at->is_over = true;  // 2 has come to c, and will come to b
  without[0].groups[1].at->number = without[0].groups[1].calls = 9;
  EXPECT_THAT(find_hangs(without, 8, kRules).hung, IsEmpty());
  auto traced = ranks(30s);
  traced[1].state = RankState::kTraced;
  EXPECT_THAT(find_hangs(traced, 8, kRules).hung, IsEmpty());
}

// Ranks 0 and 1, in all_reduces that were begun in opposite order.
std::vector<RankCalls> in_opposite_order(std::chrono::nanoseconds since) {
  return {in_groups(0, since, {{"a", 5, true}, {"b", 3, false}}),
          in_groups(1, since, {{"a", 5, false}, {"b", 3, true}})};
}

TEST(HangCoreTest, ARankOfWhichAThreadMayYetComeIsInNoCycle) {
  EXPECT_EQ(find_hangs(in_opposite_order(1h), 4, kRules).hung.size(), 1U);
  for (const int rank : {0, 1}) {
    auto ranks = in_opposite_order(1h);
    ranks[static_cast<std::size_t>(rank)].all_wait = false;
    const auto found = find_hangs(ranks, 4, kRules);
    EXPECT_THAT(found.hung, IsEmpty()) << "rank " << rank << " may compute (async_op)";
    EXPECT_EQ(found.waits.size(), 2U);
  }
}

TEST(HangCoreTest, ARankThatMayWaitForAnotherOfItsCallsIsInNoCycle) {
  auto ranks = in_opposite_order(1h);
  // Rank 2 downloads, and 0 waits for it in c, having begun its call in a.
  ranks[0].groups.push_back(in_groups(0, 1h, {{"c", 9, true}}).groups[0]);
  ranks.push_back(in_groups(2, 1h, {{"c", 9, false}}));
  EXPECT_THAT(find_hangs(ranks, 4, kRules).hung, IsEmpty());
  ranks[2].groups[0].calls = ranks[2].groups[0].at->number = 9;  // a transfer, which takes long
  ranks[2].groups[0].at->is_over = false;
  EXPECT_THAT(find_hangs(ranks, 4, kRules).hung, IsEmpty());
}

TEST(HangCoreTest, WithoutAProofACycleIsHungAfterTheTimeout) {
  auto ranks = in_opposite_order(31s);
  for (RankCalls& each : ranks) each.all_wait = false;
  HangRules rules{.patience = 1s, .timeout = 30s};
  const auto found = find_hangs(ranks, 4, rules);
  ASSERT_EQ(found.hung.size(), 1U) << "both wait, and neither would be named";
  EXPECT_TRUE(found.hung[0].is_verdict());
  EXPECT_EQ(
      sentence(found.hung[0]),
      "ranks 0 and 1 have waited for each other for longer than --hang-timeout allows: rank 0 "
      "in all_reduce (call 5 of a) for rank 1, rank 1 in all_reduce (call 3 of b) for rank 0");
  rules.timeout = 32s;
  EXPECT_THAT(find_hangs(ranks, 4, rules).hung, IsEmpty());
}

TEST(HangCoreTest, ARankThatMakesOtherCallsMeanwhileIsInNoCycle) {
  std::vector<RankCalls> ranks{in_groups(0, 30s, {{"a", 5, true}, {"b", 3, false}}),
                               in_groups(1, 30s, {{"a", 5, false}, {"b", 3, true}})};
  ASSERT_EQ(find_hangs(ranks, 4, kRules).hung.size(), 1U);
  ranks[1].groups.push_back(in_groups(1, 2s, {{"e", 77, false}}).groups[0]);
  EXPECT_THAT(find_hangs(ranks, 4, kRules).hung, IsEmpty()) << "its calls are asynchronous";
}

TEST(HangCoreTest, AWaitIsHungAfterTheTimeoutAndNotBefore) {
  const HangRules rules{.patience = 1s, .timeout = 30s};
  const auto hung = [&](std::chrono::nanoseconds since, const HangRules& with) {
    return find_hangs({in_call(0, 2, 7, since), after_call(1, 2, 6)}, 2, with).hung;
  };
  EXPECT_THAT(hung(1h, kRules), IsEmpty()) << "--hang-timeout is off";
  EXPECT_THAT(hung(30s, rules), IsEmpty());
  const auto found = hung(31s, rules);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].why, Hung::Why::kTimeout);
  EXPECT_EQ(sentence(found[0]),
            "rank 1 has not come for longer than --hang-timeout allows, and rank 0 waits for it in "
            "all_reduce (call 7 of ddprun)");
  EXPECT_THAT(hung(31s, {.patience = 1s, .gap = 2s, .timeout = 30s}), IsEmpty());
}

TEST(HangCoreTest, AutomaticallyNeverBeforeTheFirstStep) {
  const HangRules rules{.patience = 1s, .timeout = 60s, .needs_step = true};
  RankCalls missing = after_call(1, 2, 6);
  EXPECT_THAT(find_hangs({in_call(0, 2, 7, 1h), missing}, 2, rules).hung, IsEmpty());
  missing.since_step = 1h;
  EXPECT_EQ(find_hangs({in_call(0, 2, 7, 1h), missing}, 2, rules).hung.size(), 1U);
}

TEST(HangCoreTest, WhatLastsLongerThanTheAutomaticTimeoutIsReportedAndNoVerdict) {
  HangRules rules{.patience = 1s, .timeout = 60s, .needs_step = true};
  RankCalls evaluates = after_call(0, 2, 6);
  evaluates.since_step = 80s;
  const std::vector<RankCalls> ranks{evaluates, in_call(1, 2, 7, 80s)};
  const auto found = find_hangs(ranks, 2, rules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_FALSE(found.hung[0].is_verdict());
  EXPECT_EQ(
      sentence(found.hung[0]),
      "rank 0 has not come for much longer than any wait of this job before, and rank 1 waits "
      "for it in all_reduce (call 7 of ddprun)");
  rules.needs_step = false;  // the user gave 60 s
  EXPECT_TRUE(find_hangs(ranks, 2, rules).hung.at(0).is_verdict());
}

TEST(HangCoreTest, TheTimeoutBlamesNobodyWhoWaitsItself) {
  const HangRules rules{.patience = 1s, .timeout = 10s};
  // 2 waits for 0 in b, which waits for 1 in a.
  std::vector<RankCalls> ranks{in_groups(0, 15s, {{"a", 5, true}, {"b", 3, false}}),
                               in_groups(1, 15s, {{"a", 5, false}}),
                               in_groups(2, 15s, {{"b", 3, true}})};
  const auto found = find_hangs(ranks, 4, rules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.waits.size(), 2U);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
  ranks[2].state = RankState::kTraced;
  EXPECT_THAT(find_hangs(ranks, 4, rules).hung, IsEmpty())
      << "1 may wait for the one in the debugger";
}

TEST(HangCoreTest, AProofComesBeforeTheTimeout) {
  const HangRules rules{.patience = 1s, .timeout = 10s};
  std::vector<RankCalls> ranks{in_call(0, 3, 7, 15s), after_call(1, 3, 6), after_call(2, 3, 6)};
  ranks[1].state = RankState::kStopped;
  const auto found = find_hangs(ranks, 3, rules);
  ASSERT_EQ(found.hung.size(), 2U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kStopped);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
  EXPECT_EQ(found.hung[1].why, Hung::Why::kTimeout);
  EXPECT_THAT(found.hung[1].ranks, ElementsAre(2));
}

TEST(HangCoreTest, ACallInWhichAllAreIsHungOnlyAfterTheTimeoutAndIfTheyDoNothingElse) {
  const HangRules rules{.patience = 1s, .timeout = 10s};
  std::vector<RankCalls> ranks{in_call(0, 2, 7, 15s), in_call(1, 2, 7, 15s)};
  EXPECT_THAT(find_hangs(ranks, 2, kRules).hung, IsEmpty());
  const auto found = find_hangs(ranks, 2, rules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(sentence(found.hung[0]),
            "all_reduce (call 7 of ddprun) does not end for longer than --hang-timeout allows: "
            "ranks 0 and 1 are still in it");
  EXPECT_THAT(find_hangs({ranks[0]}, 2, rules).hung, IsEmpty()) << "the other has not answered";
  ranks[1].groups[0].since_entry = 1s;  // it has begun another one meanwhile
  EXPECT_THAT(find_hangs(ranks, 2, rules).hung, IsEmpty());
}

TEST(HangTimeoutTest, IsTenTimesTheLongestWaitAndAMinuteAtLeast) {
  EXPECT_EQ(HangTimeout{}.limit(10s), std::nullopt);
  EXPECT_EQ(HangTimeout{.fixed = 5s}.limit(10s), 5s);
  const HangTimeout automatic{.is_automatic = true};
  EXPECT_EQ(automatic.limit(0s), 60s);
  EXPECT_EQ(automatic.limit(6s), 60s);
  EXPECT_EQ(automatic.limit(30s), 300s);
}

HangFindings found_waiting(std::chrono::nanoseconds waited) {
  HangFindings found;
  found.waits.push_back(
      {.group = "g", .number = 7, .waited = waited, .waiting = {0}, .missing = {1}});
  return found;
}

TEST(WaitLinesTest, TellAfterOneFiveFifteenAndSixtyMinutes) {
  WaitLines lines;
  std::vector<int> told;
  for (int second = 1; second <= 7200; ++second) {
    if (lines.due(found_waiting(second * 1s))) told.push_back(second / 60);
  }
  EXPECT_THAT(told, ElementsAre(1, 5, 15, 60));
  EXPECT_FALSE(lines.due(HangFindings()));
  EXPECT_FALSE(lines.due(found_waiting(59s)));
  EXPECT_TRUE(lines.due(found_waiting(61s))) << "another wait";
}

TEST(WaitLinesTest, AnEvaluationOfTenMinutesIsTwoLines) {
  WaitLines lines;
  int told = 0;
  for (int second = 1; second <= 600; ++second)
    told += lines.due(found_waiting(second * 1s)) ? 1 : 0;
  EXPECT_EQ(told, 2);
}

TEST(WaitLinesTest, TellOfSeveralWaitsThatForTheRankThatWaitsForNoOther) {
  HangFindings found = found_waiting(90s);
  found.waits.push_back({.group = "h", .number = 3, .waited = 80s, .waiting = {1}, .missing = {2}});
  WaitLines lines;
  const auto told = lines.due(found);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->group, "h");
  EXPECT_FALSE(lines.due(found)) << "one line for all";
  found.slow.push_back({.group = "i", .number = 1, .waited = 400s, .waiting = {3, 4}});
  EXPECT_TRUE(lines.due(found));
}

TEST(WaitLinesTest, TellOfACallThatAllAreIn) {
  WaitLines lines;
  const auto found = find_hangs({in_call(0, 2, 7, 61s), in_call(1, 2, 7, 62s)}, 2, kRules);
  const auto told = lines.due(found);
  ASSERT_TRUE(told);
  EXPECT_EQ(sentence(*told),
            "all_reduce (call 7 of ddprun) has not ended: ranks 0 and 1 are in it");
}

TEST(LongestWaitTest, CountsOnlyWhatHasEnded) {
  LongestWait wait;
  for (const auto waits : {1s, 2s, 3s}) wait.looked(waits);
  EXPECT_EQ(wait.longest(), 0s);
  wait.looked(1s);
  EXPECT_EQ(wait.longest(), 3s);
  wait.looked(9s);
  wait.forget_current();  // the round was stopped
  wait.looked(0s);
  EXPECT_EQ(wait.longest(), 3s);
}

TEST(HeldForTest, BeginsAnewWhenTheProcessHasRun) {
  HeldFor held;
  const HeldFor::Time begin{};
  const auto in_kernel = [&](std::uint64_t switches, std::chrono::seconds at) {
    return held.looked(RankState::kUninterruptible, switches, begin + at);
  };
  EXPECT_EQ(in_kernel(7, 10s), 0s);
  EXPECT_EQ(in_kernel(7, 15s), 5s);
  EXPECT_EQ(in_kernel(8, 16s), 0s) << "another wait in the kernel";
  EXPECT_EQ(in_kernel(8, 17s), 1s);
  EXPECT_EQ(held.looked(RankState::kRuns, 8, begin + 18s), 0s);
  EXPECT_EQ(in_kernel(8, 19s), 0s);
}

TEST(HangCoreTest, ATracedRankNeverHangs) {
  RankCalls traced = after_call(1, 2, 6);
  traced.state = RankState::kTraced;
  const auto found = find_hangs({in_call(0, 2, 7), traced}, 2, kRules);
  EXPECT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.hung, IsEmpty());
  RankCalls traced_inside = in_call(1, 2, 7, 5s, {.operation = Operation::kBroadcast});
  traced_inside.state = RankState::kTraced;
  EXPECT_THAT(find_hangs({in_call(0, 2, 7), traced_inside}, 2, kRules).hung, IsEmpty());
}

TEST(HangCoreTest, TheMinorityOfDifferentCallsIsNamed) {
  const auto found = find_hangs({in_call(0, 3, 7, 5s, {.operation = Operation::kBroadcast}),
                                 in_call(1, 3, 7), in_call(2, 3, 7)},
                                3, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kMismatch);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0));
  EXPECT_EQ(sentence(found.hung[0]),
            "the ranks make different calls (call 7 of ddprun): broadcast on rank 0, all_reduce on "
            "ranks 1 and 2");
}

// Call 97: rank 0 is in a broadcast, rank 1 in a barrier.
std::vector<RankCalls> in_different_calls(RankCalls third) {
  return {in_call(0, 3, 97, 5s, {.operation = Operation::kBroadcast, .root = 2}),
          in_call(1, 3, 97, 5s, {.operation = Operation::kBarrier}), std::move(third)};
}

TEST(HangCoreTest, ARankThatHasLeftTheCallSaysWhichOfTwoIsDifferent) {
  constexpr record::Call kBroadcast{.operation = Operation::kBroadcast, .root = 2};
  RankCalls has_left = in_call(2, 3, 97, 5s, kBroadcast);
  has_left.groups[0].at->is_over = true;
  RankCalls waits_later = in_call(2, 3, 99, 5s);
  waits_later.groups[0].before = {{96, {.operation = Operation::kBarrier}}, {97, kBroadcast}};
  for (const RankCalls& third : {has_left, waits_later}) {
    const auto found = find_hangs(in_different_calls(third), 3, kRules);
    ASSERT_EQ(found.hung.size(), 1U);
    EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
    EXPECT_EQ(
        sentence(found.hung[0]),
        "the ranks make different calls (call 97 of ddprun): broadcast with root 2 on ranks 0 "
        "and 2, barrier on rank 1");
  }
}

TEST(HangCoreTest, ARankThatHasLeftTheCallMayBeTheDifferentOneItself) {
  RankCalls root = in_call(2, 3, 98, 5s);
  root.groups[0].before = {{97, {.operation = Operation::kBroadcast, .root = 2}}};
  const auto found = find_hangs({in_call(0, 3, 97), in_call(1, 3, 97), root}, 3, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(2)) << "it has sent, and has not waited";
}

TEST(HangCoreTest, WhatIsNotKnownOfACallThatWasLeftDecidesNothing) {
  RankCalls quick = in_call(2, 3, 97, 5s, {});
  quick.groups[0].at->is_over = true;
  for (const RankCalls& third : {quick, in_call(2, 3, 120, 5s)}) {
    auto ranks = in_different_calls(third);
    EXPECT_THAT(find_hangs(ranks, 3, kRules).hung, IsEmpty()) << "it may be known soon";
    ranks[0].groups[0].at->since = kForGood;
    const auto found = find_hangs(ranks, 3, kRules);
    ASSERT_EQ(found.hung.size(), 1U);
    EXPECT_THAT(found.hung[0].ranks, ElementsAre(0, 1));
  }
  EXPECT_THAT(find_hangs({in_call(0, 3, 97), in_call(1, 3, 97), quick}, 3, kRules).hung, IsEmpty());
}

TEST(HangCoreTest, ATieNamesBoth) {
  const auto found = find_hangs(
      {in_call(0, 2, 7, 5s, {.operation = Operation::kBroadcast}), in_call(1, 2, 7)}, 2, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0, 1));
}

TEST(HangCoreTest, WhatMustBeEqualIsComparedWhereBothSayIt) {
  const record::Call call{
      .operation = Operation::kBroadcast, .type = 6, .root = 0, .elements = 8, .signature = 9};
  const auto differs = [&call](auto change) {
    record::Call other = call;
    change(other);
    return !find_hangs({in_call(0, 2, 7, 5s, call), in_call(1, 2, 7, 5s, other)}, 2, kRules)
                .hung.empty();
  };
  EXPECT_FALSE(differs([](record::Call&) {}));
  EXPECT_TRUE(differs([](record::Call& other) { other.type = 7; }));
  EXPECT_TRUE(differs([](record::Call& other) { other.root = 1; }));
  EXPECT_TRUE(differs([](record::Call& other) { other.signature = 8; }));
  EXPECT_FALSE(differs([](record::Call& other) { other.type = record::kNoType; }));
  EXPECT_FALSE(differs([](record::Call& other) { other.root = -1; }));
  EXPECT_FALSE(differs([](record::Call& other) { other.signature = 0; }));
  EXPECT_FALSE(differs([](record::Call& other) { other.elements = 1; }))
      << "a rank's own part may have another size";
}

TEST(HangCoreTest, ARankThatHasNotMadeTheGroupOfAllIsMissing) {
  RankCalls other = after_call(1, 2, 3);
  other.groups[0].id = 1;
  other.groups[0].size = 1;
  const auto found = find_hangs({in_call(0, 2, 1), other}, 2, kRules);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.waits[0].missing, ElementsAre(1));
}

TEST(HangCoreTest, ARankThatHasMadeNoGroupYetIsMissingIfItKeepsARecord) {
  RankCalls waits = in_call(0, 2, 1, 5s, {.operation = Operation::kInitProcessGroup});
  waits.groups[0].name = "default_pg (made)";
  const auto found = find_hangs({waits, {.rank = 1, .keeps_record = true}}, 2, kRules);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_EQ(sentence(found.waits[0]),
            "rank 1 has not come to init_process_group, where rank 0 waits");
}

TEST(HangCoreTest, AWorldSizeOfTheProgramsOwnIsNamed) {
  const record::Call made{.operation = Operation::kInitProcessGroup};
  const std::string sizes =
      "init_process_group (the program asks for world size 8, this job has 2 ranks; leave "
      "world_size to the environment)";
  RankCalls late{.rank = 1, .keeps_record = true};
  EXPECT_EQ(sentence(find_hangs({in_call(0, 8, 1, 5s, made), late}, 2, kRules).waits.at(0)),
            "rank 1 has not come to " + sizes + ", where rank 0 waits");
  const std::vector<RankCalls> all = {in_call(0, 8, 1, 5s, made), in_call(1, 8, 1, 5s, made)};
  const auto found = find_hangs(all, 2, {.patience = 1s, .timeout = 3s});
  EXPECT_THAT(found.waits, IsEmpty());
  EXPECT_EQ(sentence(found.slow.at(0)), sizes + " has not ended: ranks 0 and 1 are in it");
  EXPECT_EQ(
      sentence(found.hung.at(0)),
      sizes + " does not end for longer than --hang-timeout allows: ranks 0 and 1 are still in it");
  EXPECT_THAT(find_hangs({in_call(0, 8, 7), in_call(1, 8, 7)}, 2, kRules).slow, IsEmpty())
      << "the ranks that are no workers of this job have come to the making of the group";
}

TEST(HangCoreTest, AGroupThatWasMadeAnewCountsOnce) {
  std::vector<RankCalls> ranks{in_call(0, 3, 7), in_call(1, 3, 7), in_call(2, 3, 7)};
  ranks[0].groups.push_back(after_call(0, 3, 400).groups[0]);
  const auto found = find_hangs(ranks, 3, kRules);
  EXPECT_THAT(found.waits, IsEmpty());
  EXPECT_THAT(found.hung, IsEmpty());
}

TEST(HangCoreTest, OfARankWithoutARecordNothingIsSaid) {
  EXPECT_THAT(find_hangs({in_call(0, 2, 1), {.rank = 1}}, 2, kRules).waits, IsEmpty());
  EXPECT_THAT(find_hangs({in_call(0, 8, 1)}, 8, kRules).waits, IsEmpty()) << "not answered";
}

TEST(HangCoreTest, GroupsAreLookedAtOneByOne) {
  RankCalls both = in_call(0, 3, 7);
  RankCalls only = after_call(1, 3, 7);
  for (RankCalls* rank : {&both, &only}) {
    GroupCalls pair = in_call(0, 2, 2, 9s).groups[0];
    pair.name = "pair";
    pair.id = record::id_of("pair");
    pair.at->is_over = rank == &only;
    pair.calls = rank == &only ? 1 : 2;
    rank->groups.push_back(pair);
  }
  both.groups[0].at->is_over = true;
  const auto found = find_hangs({both, only, after_call(2, 3, 7)}, 3, kRules);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_EQ(found.waits[0].group, "pair");
  EXPECT_THAT(found.waits[0].missing, ElementsAre(1));
}

// A rank that sends to, or receives from, another.
RankCalls in_message(int rank, int end, int peer, std::uint64_t number, bool is_over = false) {
  GroupCalls channel{"ddprun 0->1", record::id_of("ddprun 0->1"), 2,
                     static_cast<std::uint32_t>(end), number};
  channel.at = GroupCall{{.operation = Operation::kSendReceive}, number, is_over, 5s};
  channel.peer = static_cast<std::uint32_t>(peer);
  RankCalls made = after_call(rank, 3, 4);
  made.groups.push_back(channel);
  return made;
}

TEST(HangCoreTest, OfAMessageOnlyTheOtherEndIsMissing) {
  const auto never_came =
      find_hangs({in_message(0, 0, 1, 1), after_call(1, 3, 4), after_call(2, 3, 4)}, 3, kRules);
  ASSERT_EQ(never_came.waits.size(), 1U);
  EXPECT_EQ(sentence(never_came.waits[0]),
            "rank 1 has not come to send_recv (call 1 of ddprun 0->1), where rank 0 waits");
  const auto once_came = find_hangs(
      {in_message(0, 0, 1, 2), in_message(1, 1, 0, 1, /*is_over=*/true), after_call(2, 3, 4)}, 3,
      kRules);
  ASSERT_EQ(once_came.waits.size(), 1U);
  EXPECT_THAT(once_came.waits[0].missing, ElementsAre(1));
  EXPECT_THAT(
      find_hangs({in_message(0, 0, 1, 2), in_message(1, 1, 0, 2), after_call(2, 3, 4)}, 3, kRules)
          .waits,
      IsEmpty());
}

TEST(HangCoreTest, MessagesThatWaitForEachOtherAreAProofOnlyIfTheirRanksWait) {
  GroupCalls back{"ddprun 1->0", record::id_of("ddprun 1->0"), 2, 0, 1};
  back.at = GroupCall{{.operation = Operation::kSendReceive}, 1, /*is_over=*/false, 100s};
  back.peer = 0;
  RankCalls one = in_message(0, 0, 1, 1), other = after_call(1, 3, 4);
  other.groups.push_back(back);
  for (RankCalls* each : {&one, &other}) {
    for (GroupCalls& group : each->groups) group.at->since = group.since_entry = 100s;
  }
  auto found = find_hangs({one, other, after_call(2, 3, 4)}, 3, kRules);
  EXPECT_EQ(found.waits.size(), 2U);
  EXPECT_THAT(found.hung, IsEmpty()) << "both may have posted their messages, and compute";
  one.all_wait = other.all_wait = true;
  found = find_hangs({one, other, after_call(2, 3, 4)}, 3, kRules);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kCycle);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0, 1));
}

// ---- what healthy programs do for an hour: in none of them a rank is called hung

struct Healthy {
  const char* what;
  std::vector<RankCalls> ranks;
};

RankCalls in_phase(RankCalls rank, bool all_wait) {
  rank.all_wait = all_wait;
  rank.since_step = 1h;
  return rank;
}

std::vector<Healthy> healthy_jobs() {
  const RankCalls waits = in_phase(in_call(1, 3, 7, 1h), true),
                  waits_too = in_phase(in_call(2, 3, 7, 1h), true);
  const RankCalls busy = in_phase(after_call(0, 3, 6), false);
  const auto message = [](int rank, int from, int to, std::uint64_t number, bool is_over) {
    const std::string name = "ddprun " + std::to_string(from) + "->" + std::to_string(to);
    GroupCalls channel{name, record::id_of(name), 2, rank == from ? 0U : 1U, number};
    channel.at = GroupCall{{.operation = Operation::kSendReceive}, number, is_over, 1h};
    channel.since_entry = 1h;
    channel.peer = static_cast<std::uint32_t>(rank == from ? to : from);
    return channel;
  };
  const auto stage = [&](int rank, bool all_wait, std::vector<GroupCalls> channels) {
    RankCalls made = in_phase(after_call(rank, 3, 4), all_wait);
    made.groups.insert(made.groups.end(), channels.begin(), channels.end());
    for (GroupCalls& group : made.groups) group.at->since = group.since_entry = 1h;
    return made;
  };
  std::vector<Healthy> jobs;
  const auto add = [&](const char* what, std::vector<RankCalls> ranks) {
    jobs.push_back({what, std::move(ranks)});
  };
  add("rank 0 evaluates", {busy, waits, waits_too});
  add("rank 0 writes a checkpoint", {busy, waits, waits_too});
  jobs.back().ranks[0].state = RankState::kUninterruptible;
  jobs.back().ranks[0].held_for = 100s;  // one fsync, on a file server
  add("rank 0 compiles in its first step", {busy, waits, waits_too});
  for (RankCalls& each : jobs.back().ranks) each.since_step = std::nullopt;
  add("rank 0 downloads before it makes a group", {{.rank = 0}, waits, waits_too});
  add("all but one have ended their data", {waits, in_phase(after_call(2, 3, 6), false)});
  add("a large all_reduce", {in_phase(in_call(0, 3, 7, 1h), true), waits, waits_too});
  add("rank 0 is in a debugger", {busy, waits, waits_too});
  jobs.back().ranks[0].state = RankState::kTraced;
  {
    auto ranks = in_opposite_order(1h);
    for (RankCalls& each : ranks) each.all_wait = false;
    add("async all_reduces of two groups, begun in opposite order, and both compute", ranks);
    ranks[1].all_wait = true;
    add("... and one has waited for its own since then", ranks);
  }
  add("a collective in another thread: the main one waits, a second one will come",
      in_opposite_order(1h));
  jobs.back().ranks[0].all_wait = jobs.back().ranks[1].all_wait = false;
  add("a pipeline: the first stage computes, the others wait for its message",
      {stage(0, false, {message(0, 0, 1, 4, true)}), stage(1, true, {message(1, 0, 1, 5, false)}),
       stage(2, true, {message(2, 1, 2, 5, false)})});
  add("a pipeline, backwards: the last stage computes",
      {stage(0, true, {message(0, 1, 0, 5, false)}), stage(1, true, {message(1, 2, 1, 5, false)}),
       stage(2, false, {message(2, 2, 1, 4, true)})});
  add("both ends have posted the next receive and compute",
      {stage(0, false, {message(0, 1, 0, 5, false)}),
       stage(1, false, {message(1, 0, 1, 5, false)})});
  add("one end computes with a receive posted, the other waits for it",
      {stage(0, false, {message(0, 1, 0, 5, false)}),
       stage(1, true, {message(1, 0, 1, 5, false)})});
  add("the root of a broadcast has left it, and evaluates",
      {in_phase(after_call(0, 3, 7), false), waits, waits_too});
  add("ranks of two groups wait for one that loads data",
      {in_groups(0, 1h, {{"a", 5, true}}), in_groups(1, 1h, {{"a", 5, false}, {"b", 3, false}}),
       in_groups(2, 1h, {{"b", 3, true}})});
  jobs.back().ranks[1].all_wait = false;
  return jobs;
}

TEST(HealthyJobs, AreNeverHung) {
  for (const Healthy& job : healthy_jobs()) {
    SCOPED_TRACE(job.what);
    EXPECT_THAT(find_hangs(job.ranks, 3, kRules).hung, IsEmpty());
    const HangRules automatic{.patience = 1s, .timeout = 60s, .needs_step = true};
    for (const Hung& hung : find_hangs(job.ranks, 3, automatic).hung) {
      EXPECT_FALSE(hung.is_verdict()) << sentence(hung);
    }
  }
}

TEST(HangCoreTest, AThousandRanksAreOneSentence) {
  std::vector<RankCalls> ranks;
  for (int rank = 0; rank < 1024; ++rank) {
    ranks.push_back(rank == 77 ? after_call(rank, 1024, 8) : in_call(rank, 1024, 9));
  }
  const auto found = find_hangs(ranks, 1024, kRules);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.waits[0].missing, ElementsAre(77));
  EXPECT_THAT(sentence(found.waits[0]), HasSubstr("ranks 0, 1, 2, 3, 4, 5 and 1017 more wait"));
}

// Workers write what they like into their records.
TEST(HangCoreTest, GarbageIsJudgedAndHarmsNothing) {
  std::mt19937_64 random(29);
  const auto any = [&random](std::uint64_t below) { return random() % below; };
  for (int round = 0; round < 2000; ++round) {
    std::vector<RankCalls> ranks;
    for (std::uint64_t i = any(12); i > 0; --i) {
      RankCalls rank{.rank = static_cast<int>(any(9)) - 1,
                     .state = static_cast<RankState>(any(5)),
                     .held_for = std::chrono::nanoseconds(random())};
      for (std::uint64_t groups = any(4); groups > 0; --groups) {
        GroupCalls group{"g", any(3), static_cast<std::uint32_t>(any(4) == 0 ? random() : any(9)),
                         static_cast<std::uint32_t>(random()), any(2) == 0 ? any(4) : random()};
        group.since_entry = std::chrono::nanoseconds(random() >> 1);
        if (any(3) > 0) {
          const auto operation = static_cast<Operation>(any(256));
          group.at = GroupCall{{.operation = operation, .root = static_cast<int>(random())},
                               any(2) == 0 ? any(4) : random(),
                               any(2) == 0,
                               std::chrono::nanoseconds(random() >> 1)};
        }
        rank.groups.push_back(group);
      }
      ranks.push_back(std::move(rank));
    }
    const auto found = find_hangs(ranks, static_cast<int>(any(9)), {.patience = 1s, .timeout = 9s});
    for (const auto& hung : found.hung) EXPECT_FALSE(sentence(hung).empty());
    for (const auto& wait : found.waits) EXPECT_FALSE(wait.missing.empty());
  }
}

// As in a job of 128 nodes, three groups for each rank: all ranks, those of its node, and those with its local
// rank. What it takes is printed; the bars are a second, and 64 KiB for each rank.
TEST(HangCoreTest, AThousandRanksAreJudgedWithinASecond) {
  constexpr int kWorld = 1024;
  constexpr int kPerNode = 8;
  std::vector<RankCalls> ranks;
  for (int rank = 0; rank < kWorld; ++rank) {
    const bool is_missing = rank == 77;
    RankCalls each = is_missing ? after_call(rank, kWorld, 8) : in_call(rank, kWorld, 9, 30s);
    for (const auto& [name, size] :
         {std::pair("node" + std::to_string(rank / kPerNode), kPerNode),
          std::pair("local" + std::to_string(rank % kPerNode), kWorld / kPerNode)}) {
      GroupCalls group = after_call(rank, size, 400).groups[0];
      group.name = name;
      group.id = record::id_of(name);
      each.groups.push_back(group);
    }
    if (is_missing) each.state = RankState::kStopped;
    ranks.push_back(std::move(each));
  }
  const HangRules rules{.patience = 1s, .timeout = 20s};
  const auto begin = std::chrono::steady_clock::now();
  const auto found = find_hangs(ranks, kWorld, rules);
  const auto took = std::chrono::steady_clock::now() - begin;
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(77));
  std::printf("%d ranks judged in %.1f ms\n", kWorld,
              std::chrono::duration<double, std::milli>(took).count());
  EXPECT_LT(took, 1s);
}

TEST(WaitPatienceTest, IsFiveTimesASlowStepAndASecondAtLeast) {
  WaitPatience patience;
  const WaitPatience::Time begin{};
  EXPECT_EQ(patience.patience(), 1s);
  patience.stepped(0, 1, begin);
  patience.stepped(0, 11, begin + 1s);
  EXPECT_EQ(patience.patience(), 1s) << "100 ms per step";
  patience.stepped(0, 12, begin + 5s);
  patience.stepped(0, 13, begin + 9s);
  EXPECT_EQ(patience.patience(), 20s);
  patience.stepped(0, 13, begin + 99s);  // no new step
  patience.stepped(0, 1, begin + 100s);  // it has begun anew
  EXPECT_EQ(patience.patience(), 20s);
}

}  // namespace
}  // namespace ddprun::rdzv
