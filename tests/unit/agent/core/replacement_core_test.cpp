// Replacement in place as one node decides about it: what workers say and how they die, as values.
#include "agent/core/replacement_core.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

using Standing = ReplacementCore::Standing;

constexpr ReplacementCore::Remains kHasState{.has_mirror = true, .committed = 7, .generation = 2};
const std::vector<Standing> kOthersCome{Standing::kGone, Standing::kTakesPart, Standing::kDying};

rdzv::WorkerFailure failure_of(int local_rank, std::string message = {}) {
  rdzv::WorkerFailure failure;
  failure.local_rank = local_rank;
  failure.message = std::move(message);
  return failure;
}

Replace replacement_of(std::optional<int> local_rank, std::uint32_t generation) {
  Replace replace;
  replace.local_rank = local_rank;
  replace.generation = generation;
  replace.failure.message = "as the leader has it";
  return replace;
}

class ReplacementCoreTest : public ::testing::Test {
 protected:
  ReplacementCoreTest() { core_.round_begins(); }

  ReplacementCore core_{3};
};

// ---- what workers say

TEST_F(ReplacementCoreTest, TheLeaderHearsOnceInARoundThatAllWorkersCanRecover) {
  EXPECT_FALSE(core_.hello(0, {true, false, false}).can_all_recover);
  EXPECT_FALSE(core_.hello(2, {true, false, true}).can_all_recover);
  EXPECT_FALSE(core_.could_all_recover());
  EXPECT_TRUE(core_.hello(1, {true, true, true}).can_all_recover);
  EXPECT_TRUE(core_.could_all_recover());
  EXPECT_FALSE(core_.hello(1, {true, true, true}).can_all_recover);
  core_.round_begins();
  EXPECT_FALSE(core_.could_all_recover());
  EXPECT_TRUE(core_.hello(1, {true, true, true}).can_all_recover);
}

TEST_F(ReplacementCoreTest, TheDeathOfAWorkerIsWatchedAsSoonAsItCanRecover) {
  EXPECT_FALSE(core_.hello(1, {true, false, true}).is_watched);
  EXPECT_TRUE(core_.hello(1, {false, true, false}).is_watched);
}

TEST_F(ReplacementCoreTest, AWorkerThatWithdrawsItsOfferIsReportedOnce) {
  EXPECT_FALSE(core_.hello(1, {false, false, false}).cannot_regroup) << "it has offered nothing";
  EXPECT_FALSE(core_.refused(1));
  core_.hello(1, {false, true, false});
  EXPECT_TRUE(core_.hello(1, {false, false, false}).cannot_regroup);
  EXPECT_FALSE(core_.hello(1, {false, false, false}).cannot_regroup);
  core_.hello(1, {false, true, false});
  EXPECT_TRUE(core_.refused(1));
  EXPECT_FALSE(core_.refused(1));
}

TEST_F(ReplacementCoreTest, TheOfferOfAWorkerEndsWithIt) {
  core_.hello(1, {false, true, false});
  core_.ended(1);
  EXPECT_FALSE(core_.refused(1));
}

// ---- workers die

TEST_F(ReplacementCoreTest, AWorkerWhoseStandbyWaitsIsReplaceableWithTheStateThatItHad) {
  const auto replaceable =
      core_.failed(failure_of(0), kHasState, /*has_standby=*/true, kOthersCome);
  ASSERT_TRUE(replaceable);
  EXPECT_EQ(replaceable->committed, 7);
  EXPECT_EQ(replaceable->generation, 2U);
  EXPECT_TRUE(replaceable->has_standby);
}

TEST_F(ReplacementCoreTest, NoWorkerIsReplaceableWithoutAStandbyOrItsMirror) {
  EXPECT_FALSE(core_.failed(failure_of(0), kHasState, /*has_standby=*/false, kOthersCome));
  EXPECT_FALSE(
      core_.failed(failure_of(0), {.has_mirror = false}, /*has_standby=*/true, kOthersCome));
}

TEST_F(ReplacementCoreTest, NoWorkerIsReplaceableBesideOneThatWouldNotCome) {
  const std::vector<Standing> standings{Standing::kGone, Standing::kTakesPart,
                                        Standing::kCannotCome};
  EXPECT_FALSE(core_.failed(failure_of(0), kHasState, /*has_standby=*/true, standings));
}

TEST_F(ReplacementCoreTest, NoWorkerIsReplaceableWhenTheRoundStops) {
  EXPECT_TRUE(core_.takes_early_death(/*has_standby=*/true));
  EXPECT_FALSE(core_.takes_early_death(/*has_standby=*/false));
  core_.round_stops();
  EXPECT_FALSE(core_.failed(failure_of(0), kHasState, /*has_standby=*/true, kOthersCome));
  EXPECT_FALSE(core_.takes_early_death(/*has_standby=*/true));
  core_.round_begins();
  EXPECT_TRUE(core_.failed(failure_of(0), kHasState, /*has_standby=*/true, kOthersCome));
  EXPECT_TRUE(core_.takes_early_death(/*has_standby=*/true));
}

TEST_F(ReplacementCoreTest, TheFailureOfANewcomerBelongsToItsGenerationAlsoWithoutAStandby) {
  core_.replaced(replacement_of(0, 1));
  core_.took_place(0);
  const auto replaceable =
      core_.failed(failure_of(0), kHasState, /*has_standby=*/false, kOthersCome);
  ASSERT_TRUE(replaceable);
  EXPECT_FALSE(replaceable->has_standby);
  ReplacementCore::Remains refused = kHasState;
  refused.has_refused = true;
  EXPECT_FALSE(core_.failed(failure_of(0), refused, /*has_standby=*/false, kOthersCome));
  EXPECT_FALSE(core_.failed(failure_of(1), kHasState, /*has_standby=*/false, kOthersCome))
      << "rank 1 has its first worker";
  core_.round_begins();
  EXPECT_FALSE(core_.failed(failure_of(0), kHasState, /*has_standby=*/false, kOthersCome))
      << "a round starts all workers anew";
}

// ---- a generation

TEST_F(ReplacementCoreTest, AGenerationIsOverWhenEveryWorkerHasCommittedAStepInIt) {
  EXPECT_FALSE(core_.is_replacing());
  core_.replaced(replacement_of(std::nullopt, 1));
  EXPECT_EQ(core_.generation(), 1U);
  EXPECT_TRUE(core_.is_replacing());
  EXPECT_FALSE(core_.committed(0, 1));
  EXPECT_FALSE(core_.committed(0, 1)) << "it has said so before";
  EXPECT_FALSE(core_.committed(1, 1));
  EXPECT_TRUE(core_.is_replacing());
  EXPECT_TRUE(core_.committed(2, 1));
  EXPECT_FALSE(core_.is_replacing());
}

TEST_F(ReplacementCoreTest, AStepOfAnEarlierGenerationEndsNoLaterOne) {
  core_.replaced(replacement_of(std::nullopt, 1));
  for (const int local_rank : {0, 1}) core_.committed(local_rank, 1);
  core_.replaced(replacement_of(std::nullopt, 2));
  EXPECT_FALSE(core_.committed(2, 1));
  for (const int local_rank : {0, 1}) EXPECT_FALSE(core_.committed(local_rank, 2));
  EXPECT_TRUE(core_.committed(2, 2));
}

// A worker may write any number.
TEST_F(ReplacementCoreTest, AStepOfAGenerationThatHasNotBegunCountsForTheLastOneOnly) {
  core_.replaced(replacement_of(std::nullopt, 1));
  for (const int local_rank : {0, 1, 2}) core_.committed(local_rank, 1'000'000);
  EXPECT_FALSE(core_.is_replacing());
  core_.replaced(replacement_of(std::nullopt, 2));
  EXPECT_TRUE(core_.is_replacing());
}

TEST_F(ReplacementCoreTest, ARoundBeginsWithoutAGeneration) {
  core_.replaced(replacement_of(std::nullopt, 3));
  core_.round_begins();
  EXPECT_EQ(core_.generation(), 0U);
  EXPECT_FALSE(core_.is_replacing());
}

TEST_F(ReplacementCoreTest, AFailureWhosePlaceNoStandbyTakesIsReportedAsItWas) {
  core_.failed(failure_of(1, "the whole message"), kHasState, /*has_standby=*/true, kOthersCome);
  const auto failure = core_.replaced(replacement_of(1, 1));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->message, "the whole message");
  EXPECT_EQ(core_.replaced(replacement_of(1, 2))->message, "as the leader has it")
      << "it was reported";
  EXPECT_EQ(core_.replaced(replacement_of(std::nullopt, 3)), std::nullopt);
}

}  // namespace
}  // namespace ddprun::agent
