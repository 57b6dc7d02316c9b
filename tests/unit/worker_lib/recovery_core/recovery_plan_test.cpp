// The table of recovery_plan.h, a test for each row, and that no plan is made where none is right.
#include "worker_lib/recovery_core/recovery_plan.h"

#include <gtest/gtest.h>

namespace ddprun::recovery {
namespace {

constexpr Place kNewcomer{Holds::kNothing, 0, 0, 0};

Place whole(std::int64_t committed, std::int64_t calls = 0, bool is_in_step = false) {
  return {Holds::kWhole, committed, calls, is_in_step ? 1 : 0};
}

Place part(std::int64_t committed, std::int64_t calls = 0, bool is_in_step = false) {
  return {Holds::kPart, committed, calls, is_in_step ? 1 : 0};
}

Plan planned(const std::vector<Place>& places) { return std::get<Plan>(plan(places)); }

std::string refusal(const std::vector<Place>& places) { return std::get<NoPlan>(plan(places)).why; }

using Roles = std::vector<Role>;

TEST(RecoveryPlan, TheDonorHasCommittedTheMostSteps) {
  EXPECT_EQ(planned({whole(4, 9, true), whole(5), kNewcomer}).donor, 1);
}

TEST(RecoveryPlan, OfEquallyManyStepsTheDonorHasMadeTheMostCalls) {
  EXPECT_EQ(planned({whole(5, 1), kNewcomer, whole(5, 2)}).donor, 2);
}

TEST(RecoveryPlan, OfEquallyManyCallsTheDonorIsInAStep) {
  EXPECT_EQ(planned({whole(5, 2), whole(5, 2, true)}).donor, 1);
}

TEST(RecoveryPlan, OfEqualRanksTheDonorIsTheFirst) {
  EXPECT_EQ(planned({kNewcomer, whole(5), whole(5)}).donor, 1);
}

TEST(RecoveryPlan, ARankWithoutTheWholeStateIsNoDonorHoweverFarItWas) {
  EXPECT_EQ(planned({part(6, 3, true), whole(6, 3)}).donor, 1);
  EXPECT_EQ(planned({kNewcomer, whole(0)}).donor, 1);
}

TEST(RecoveryPlan, ARankThatIsOneStepBehindIsGivenTheStep) {
  const Plan plan = planned({whole(4, 7, true), whole(5, 2)});
  EXPECT_EQ(plan.roles, (Roles{Role::kBehind, Role::kLevel}));
  EXPECT_EQ(plan.at, whole(5, 2));
}

TEST(RecoveryPlan, ARankWhoseDonorWasLostIsIncompleteIfNoRankThatIsFurtherIsLeft) {
  const Plan plan = planned({part(5, 1, true), whole(5, 1, true), kNewcomer});
  EXPECT_EQ(plan.roles, (Roles{Role::kIncomplete, Role::kLevel, Role::kNewcomer}));
}

TEST(RecoveryPlan, ARankWhoseDonorWasLostIsBehindIfARankThatIsFurtherIsLeft) {
  EXPECT_EQ(planned({part(4, 0, true), whole(5), kNewcomer}).roles,
            (Roles{Role::kBehind, Role::kLevel, Role::kNewcomer}));
}

TEST(RecoveryPlan, ANewcomerIsNeverBehind) {
  EXPECT_EQ(planned({kNewcomer, whole(1)}).roles, (Roles{Role::kNewcomer, Role::kLevel}));
}

TEST(RecoveryPlan, ThereIsNoneWithoutARankThatHasTheWholeState) {
  const std::string none = "no rank is left that has the state of the training";
  EXPECT_EQ(refusal({kNewcomer, part(5)}), none);
  EXPECT_EQ(refusal({kNewcomer}), none);
  EXPECT_EQ(refusal({}), none);
}

TEST(RecoveryPlan, ThereIsNoneIfARankIsTwoStepsBehind) {
  const std::string two =
      "rank 0 has committed 3 steps and rank 1 5, which one step that waits for all ranks cannot "
      "cause";
  EXPECT_EQ(refusal({whole(3), whole(5)}), two);
  EXPECT_EQ(refusal({part(3), whole(5)}), two);
}

TEST(RecoveryPlan, ThereIsNoneIfARankIsBehindThatHasNotBegunTheStep) {
  EXPECT_EQ(
      refusal({whole(5), whole(4, 3)}),
      "rank 1 has not begun the step that rank 0 has committed: a step in which no rank waits "
      "for the others cannot be recovered");
}

TEST(RecoveryPlan, ThereIsNoneIfARankIsInTheStepAfterOtherCalls) {
  EXPECT_EQ(refusal({whole(5, 2, true), whole(5, 3)}),
            "rank 0 is in a step after 2 calls and rank 1 has made 3: do all ranks make the same "
            "calls?");
  EXPECT_NE(refusal({part(5, 3, true), whole(5, 2)}), "");
  // Between two steps a rank may lag behind by any number of calls.
  EXPECT_EQ(planned({whole(5, 2), whole(5, 3)}).donor, 1);
}

TEST(RecoveryPlan, ThereIsNoneIfARankWithAPartIsFurtherThanAllOthers) {
  EXPECT_NE(refusal({part(6), whole(5)}), "");
}

TEST(EntryPoint, IsTheStepOfTheOthersIfTheMirrorHasItsEntry) {
  EXPECT_EQ(entry_point(whole(5, 1, true), {true, true, true}), EntryPoint::kThisStep);
  EXPECT_EQ(entry_point(whole(0, 0, true), {true, false, false}), EntryPoint::kThisStep);
}

TEST(EntryPoint, IsBeforeTheCallsIfTheOthersAreInNoStep) {
  EXPECT_EQ(entry_point(whole(5, 1), {true, true, true}), EntryPoint::kBeforeCalls);
}

TEST(EntryPoint, IsBeforeTheCallsIfTheRankDiedBeforeItsStep) {
  EXPECT_EQ(entry_point(whole(5, 1, true), {false, true, true}), EntryPoint::kBeforeCalls);
}

TEST(EntryPoint, IsNowhereIfTheLastStepIsNotWhole) {
  EXPECT_EQ(entry_point(whole(5, 1, true), {false, true, false}), EntryPoint::kNowhere);
  EXPECT_EQ(entry_point(whole(5, 1, true), {false, false, true}), EntryPoint::kNowhere);
}

}  // namespace
}  // namespace ddprun::recovery
