// The rules by which ranks wait for others or hang, one case per row of the table in hang_core.h.
#include "rendezvous/round/hang_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using record::Operation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kPatience = 1s;

// A rank of a group of all ranks that is in a call.
RankCalls in_call(int rank, int world, std::uint64_t number, std::chrono::nanoseconds since = 5s,
                  record::Call call = {.operation = Operation::kAllReduce, .type = 6}) {
  GroupCalls group{"ddprun", record::id_of("ddprun"), static_cast<std::uint32_t>(world),
                   static_cast<std::uint32_t>(rank), number};
  group.at = GroupCall{call, number, /*is_over=*/false, since};
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
      kPatience);
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
  EXPECT_THAT(find_hangs({in_call(0, 2, 7, 900ms), after_call(1, 2, 6)}, 2, kPatience).waits,
              IsEmpty());
}

TEST(HangCoreTest, SaysNothingWhenAllAreInTheCallAndItMatches) {
  const auto found = find_hangs({in_call(0, 2, 7, 100s), in_call(1, 2, 7, 100s)}, 2, kPatience);
  EXPECT_THAT(found.waits, IsEmpty());
  EXPECT_THAT(found.hung, IsEmpty());
}

TEST(HangCoreTest, SaysNothingOfOneThatHasComeAndGone) {
  EXPECT_THAT(find_hangs({in_call(0, 2, 7), after_call(1, 2, 7)}, 2, kPatience).waits, IsEmpty())
      << "the root of a broadcast leaves before the others";
}

TEST(HangCoreTest, AStoppedRankHangsIfOthersWaitForIt) {
  RankCalls stopped = after_call(1, 2, 6);
  stopped.state = RankState::kStopped;
  const auto found = find_hangs({in_call(0, 2, 7), stopped}, 2, kPatience);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kStopped);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(1));
  EXPECT_THAT(sentence(found.hung[0]), HasSubstr("rank 1 is stopped by a signal"));
  EXPECT_THAT(find_hangs({after_call(0, 2, 6), stopped}, 2, kPatience).hung, IsEmpty())
      << "nobody waits";
}

TEST(HangCoreTest, ATracedRankNeverHangs) {
  RankCalls traced = after_call(1, 2, 6);
  traced.state = RankState::kTraced;
  const auto found = find_hangs({in_call(0, 2, 7), traced}, 2, kPatience);
  EXPECT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.hung, IsEmpty());
  RankCalls traced_inside = in_call(1, 2, 7, 5s, {.operation = Operation::kBroadcast});
  traced_inside.state = RankState::kTraced;
  EXPECT_THAT(find_hangs({in_call(0, 2, 7), traced_inside}, 2, kPatience).hung, IsEmpty());
}

TEST(HangCoreTest, TheMinorityOfDifferentCallsIsNamed) {
  const auto found = find_hangs({in_call(0, 3, 7, 5s, {.operation = Operation::kBroadcast}),
                                 in_call(1, 3, 7), in_call(2, 3, 7)},
                                3, kPatience);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_EQ(found.hung[0].why, Hung::Why::kMismatch);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0));
  EXPECT_EQ(sentence(found.hung[0]),
            "the ranks make different calls (call 7 of ddprun): broadcast on rank 0, all_reduce on "
            "ranks 1 and 2");
}

TEST(HangCoreTest, ATieNamesBoth) {
  const auto found = find_hangs(
      {in_call(0, 2, 7, 5s, {.operation = Operation::kBroadcast}), in_call(1, 2, 7)}, 2, kPatience);
  ASSERT_EQ(found.hung.size(), 1U);
  EXPECT_THAT(found.hung[0].ranks, ElementsAre(0, 1));
}

TEST(HangCoreTest, WhatMustBeEqualIsComparedWhereBothSayIt) {
  const record::Call call{
      .operation = Operation::kBroadcast, .type = 6, .root = 0, .elements = 8, .signature = 9};
  const auto differs = [&call](auto change) {
    record::Call other = call;
    change(other);
    return !find_hangs({in_call(0, 2, 7, 5s, call), in_call(1, 2, 7, 5s, other)}, 2, kPatience)
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
  const auto found = find_hangs({in_call(0, 2, 1), other}, 2, kPatience);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.waits[0].missing, ElementsAre(1));
}

TEST(HangCoreTest, OfARankWithoutARecordNothingIsSaid) {
  EXPECT_THAT(find_hangs({in_call(0, 2, 1), {.rank = 1}}, 2, kPatience).waits, IsEmpty());
  EXPECT_THAT(find_hangs({in_call(0, 8, 1)}, 8, kPatience).waits, IsEmpty()) << "not answered";
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
  const auto found = find_hangs({both, only, after_call(2, 3, 7)}, 3, kPatience);
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
      find_hangs({in_message(0, 0, 1, 1), after_call(1, 3, 4), after_call(2, 3, 4)}, 3, kPatience);
  ASSERT_EQ(never_came.waits.size(), 1U);
  EXPECT_EQ(sentence(never_came.waits[0]),
            "rank 1 has not come to send_recv (call 1 of ddprun 0->1), where rank 0 waits");
  const auto once_came = find_hangs(
      {in_message(0, 0, 1, 2), in_message(1, 1, 0, 1, /*is_over=*/true), after_call(2, 3, 4)}, 3,
      kPatience);
  ASSERT_EQ(once_came.waits.size(), 1U);
  EXPECT_THAT(once_came.waits[0].missing, ElementsAre(1));
  EXPECT_THAT(find_hangs({in_message(0, 0, 1, 2), in_message(1, 1, 0, 2), after_call(2, 3, 4)}, 3,
                         kPatience)
                  .waits,
              IsEmpty());
}

TEST(HangCoreTest, AThousandRanksAreOneSentence) {
  std::vector<RankCalls> ranks;
  for (int rank = 0; rank < 1024; ++rank) {
    ranks.push_back(rank == 77 ? after_call(rank, 1024, 8) : in_call(rank, 1024, 9));
  }
  const auto found = find_hangs(ranks, 1024, kPatience);
  ASSERT_EQ(found.waits.size(), 1U);
  EXPECT_THAT(found.waits[0].missing, ElementsAre(77));
  EXPECT_THAT(sentence(found.waits[0]), HasSubstr("ranks 0, 1, 2, 3, 4, 5 and 1017 more wait"));
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
