// The table of recovery_core.h, a test for each row.
#include "worker_lib/recovery_core/recovery_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::recovery {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Place kNoState{Holds::kNothing, 0, 0, 0};

Place whole(std::int64_t committed, std::int64_t calls = 0, bool is_in_step = false) {
  return {Holds::kWhole, committed, calls, is_in_step ? 1 : 0};
}

// What does not depend on the numbers in them.
const State kStates[] = {recovery::SetUp{},
                         Prepared{},
                         Entering{5, 2},
                         Between{5, 2, 0},
                         InStep{5, 2},
                         Regrouping{InStep{5, 2}},
                         Taking{InStep{5, 2}, whole(5, 2, true)},
                         Off{}};
enum Column { kSetUp, kPrepared, kEntering, kBetween, kInStep, kRegrouping, kTaking, kOff };

void expect_never(const Event& event, const std::vector<Column>& columns) {
  for (const Column column : columns) {
    EXPECT_THROW(step(kStates[column], event), Bug) << "in state " << column;
  }
}

void expect_ignored(const Event& event, const std::vector<Column>& columns) {
  for (const Column column : columns) {
    const Outcome outcome = step(kStates[column], event);
    EXPECT_EQ(outcome.state, kStates[column]);
    EXPECT_THAT(outcome.actions, IsEmpty());
  }
}

void expect(const Outcome& outcome, const State& state, const std::vector<Action>& actions) {
  EXPECT_EQ(outcome.state, state);
  EXPECT_EQ(outcome.actions, actions);
}

void expect_refused(const Outcome& outcome, const State& state, const std::vector<Action>& actions,
                    const std::string& why) {
  expect(outcome, state, actions);
  EXPECT_THAT(outcome.why, HasSubstr(why));
}

TEST(RecoveryCore, JoinedBeginsTheLoopOfAWorkerAndOfNoOtherTwice) {
  expect(step(recovery::SetUp{}, Joined{}), Between{0, 0, 0}, {});
  expect(step(recovery::SetUp{}, Joined{.committed = 7}), Between{7, 0, 0}, {});
  expect(step(Prepared{}, Joined{}), Prepared{}, {TakePlace{}});
  for (const Column column : {kEntering, kBetween, kInStep}) {
    expect_refused(step(kStates[column], Joined{}), Off{}, {TellRefused{}}, "more than one");
  }
  expect_never(Joined{}, {kRegrouping, kTaking});
  expect_ignored(Joined{}, {kOff});
}

TEST(RecoveryCore, PlacedMakesAStandbyANewcomer) {
  expect(step(Prepared{}, Placed{}), Regrouping{Newcomer{}}, {});
  expect_never(Placed{}, {kSetUp, kEntering, kBetween, kInStep, kRegrouping, kTaking, kOff});
}

TEST(RecoveryCore, ACallIsMadeOrReplayed) {
  expect(step(recovery::SetUp{}, CallBegins{}), recovery::SetUp{}, {MakeCall{}});
  expect(step(Prepared{}, CallBegins{}), Prepared{}, {ReplaySetUpCall{}});
  expect(step(Between{5, 2, 0}, CallBegins{}), Between{5, 2, 0}, {MakeCall{}});
  expect(step(Between{5, 2, 2}, CallBegins{}), Between{5, 3, 1}, {ReplayCall{2}});
  expect(step(Between{5, 3, 1}, CallBegins{}), Between{5, 4, 0}, {ReplayCall{3}});
  expect_never(CallBegins{}, {kInStep, kRegrouping, kTaking, kOff});
}

TEST(RecoveryCore, ANewcomerFailsInACallBeforeItsFirstStep) {
  for (const bool is_one_step_before : {false, true}) {
    const Entering entering{5, 2, is_one_step_before};
    expect_refused(step(entering, CallBegins{"all_reduce"}), entering, {Fail{}},
                   "calls all_reduce before its first step");
  }
}

TEST(RecoveryCore, ACallThatIsOverIsCountedBetweenSteps) {
  expect_ignored(CallOver{}, {kSetUp, kOff});
  expect(step(Between{5, 2, 0}, CallOver{}), Between{5, 3, 0}, {});
  EXPECT_THROW(step(Between{5, 2, 1}, CallOver{}), Bug);
  expect_never(CallOver{}, {kPrepared, kEntering, kInStep, kRegrouping, kTaking});
}

TEST(RecoveryCore, AStepBeginsAfterAllCallsBeforeIt) {
  expect(step(Between{5, 2, 0}, StepBegins{}), InStep{5, 2}, {NoteEntry{5}});
  expect_refused(step(Between{5, 2, 1}, StepBegins{}), Between{5, 2, 1},
                 {Fail{.is_of_program = true}}, "without the calls that the other ranks have made");
  expect_never(StepBegins{}, {kSetUp, kPrepared, kInStep, kRegrouping, kTaking, kOff});
}

TEST(RecoveryCore, ANewcomerBeginsWithTheStepOfTheOthersOrSkipsTheLastOne) {
  expect(step(Entering{5, 2, false}, StepBegins{}), InStep{5, 2}, {Restore{5, Moment::kEntry}});
  expect(step(Entering{5, 2, true}, StepBegins{}), Between{5, 0, 2}, {Restore{4, Moment::kEffect}});
}

TEST(RecoveryCore, AStepThatIsOverIsCommitted) {
  expect(step(InStep{5, 2}, StepOver{}), Between{6, 0, 0}, {ForgetCalls{}, TellCommitted{6}});
  expect_never(StepOver{}, {kSetUp, kPrepared, kEntering, kBetween, kRegrouping, kTaking});
  expect_ignored(StepOver{}, {kOff});
}

TEST(RecoveryCore, AStepThatThrowsWhileNoRankIsLostEndsRecovery) {
  expect(step(InStep{5, 2}, StepThrew{}), Off{}, {});
  expect_never(StepThrew{}, {kSetUp, kPrepared, kEntering, kBetween, kRegrouping, kTaking});
  expect_ignored(StepThrew{}, {kOff});
}

TEST(RecoveryCore, ARankRegroupsFromWhereItIs) {
  expect(step(Entering{5, 2, true}, Regroup{}), Regrouping{Entering{5, 2, true}}, {});
  expect(step(Between{5, 2, 1}, Regroup{}), Regrouping{Between{5, 2, 1}}, {});
  expect(step(InStep{5, 2}, Regroup{}), Regrouping{InStep{5, 2}}, {});
  expect_never(Regroup{}, {kSetUp, kPrepared, kOff});
}

TEST(RecoveryCore, ARankThatIsLostInARegroupingBeginsItAnewWithWhatItHas) {
  expect(step(Regrouping{Newcomer{}}, Regroup{}), Regrouping{Newcomer{}}, {});
  expect(step(Taking{Newcomer{}, whole(5)}, Regroup{}), Regrouping{Newcomer{}}, {});
  expect(step(Taking{InStep{5, 2}, whole(5, 2, true)}, Regroup{}), Regrouping{InStep{5, 2}}, {});
  expect(step(Taking{Incomplete{5, 2}, whole(6)}, Regroup{}), Regrouping{Incomplete{5, 2}}, {});
}

TEST(RecoveryCore, AfterTheOptimizersStepNoStepIsMadeAgain) {
  expect_refused(step(InStep{5, 2}, Regroup{.has_stepped = true}), Off{}, {Fail{}},
                 "follows the optimizer's step");
}

TEST(RecoveryCore, APlaceSaysWhatARankHas) {
  EXPECT_EQ(place_of({Newcomer{}}), kNoState);
  EXPECT_EQ(place_of({Entering{5, 2, true}}), whole(5, 2));
  EXPECT_EQ(place_of({Between{5, 2, 1}}), whole(5, 3));
  EXPECT_EQ(place_of({InStep{5, 2}}), whole(5, 2, true));
  EXPECT_EQ(place_of({Incomplete{5, 2}}), (Place{Holds::kPart, 5, 2, 1}));
}

TEST(RecoveryCore, RanksThatHaveMetTakeTheStateOfTheDonor) {
  const std::vector<Place> places{whole(5, 2, true), whole(6, 1), kNoState};
  expect(step(Regrouping{Between{6, 1, 0}}, Met{places, 1}), Taking{Between{6, 1, 0}, whole(6, 1)},
         {TakeState{1, false}});
  expect(step(Regrouping{Newcomer{}}, Met{places, 2}), Taking{Newcomer{}, whole(6, 1)},
         {TakeState{1, true}});
  // From here on its state is partly another rank's.
  expect(step(Regrouping{InStep{5, 2}}, Met{places, 0}), Taking{Incomplete{5, 2}, whole(6, 1)},
         {TakeState{1, true}});
}

TEST(RecoveryCore, ARankWithAPartOfAStateTakesThatOfALevelDonorToo) {
  const std::vector<Place> places{whole(5, 2, true), {Holds::kPart, 5, 2, 1}};
  expect(step(Regrouping{Incomplete{5, 2}}, Met{places, 1}),
         Taking{Incomplete{5, 2}, whole(5, 2, true)}, {TakeState{0, true}});
}

TEST(RecoveryCore, WithoutAPlanAllRanksGiveUp) {
  expect_refused(step(Regrouping{Newcomer{}}, Met{{kNoState, kNoState}, 0}), Off{},
                 {Withdraw{}, Fail{}}, "no rank is left that has the state");
}

TEST(RecoveryCore, MetIsABugWhereNoRankRegroupsOrTheRankIsElsewhere) {
  const Met met{{whole(5, 2, true)}, 0};
  expect_never(met, {kSetUp, kPrepared, kEntering, kBetween, kInStep, kTaking, kOff});
  EXPECT_THROW(step(Regrouping{InStep{5, 3}}, met), Bug);
  EXPECT_THROW(step(Regrouping{InStep{5, 2}}, Met{met.places, 1}), Bug);
}

constexpr InMirror kAll{true, true, true};

TEST(RecoveryCore, ANewcomerEntersTheStepOfTheOthers) {
  expect(step(Taking{Newcomer{}, whole(5, 2, true)}, Took{2, kAll}), Entering{5, 2, false},
         {TellRegrouped{5}, Restore{5, Moment::kEntry}});
}

TEST(RecoveryCore, ANewcomerEntersTheLastStepIfTheOthersAreInNone) {
  expect(step(Taking{Newcomer{}, whole(5, 2)}, Took{2, kAll}), Entering{5, 2, true},
         {TellRegrouped{5}, Restore{4, Moment::kEntry}});
}

TEST(RecoveryCore, ANewcomerEntersTheLastStepIfItsMirrorNeverEnteredTheOneOfTheOthers) {
  expect(step(Taking{Newcomer{}, whole(5, 2, true)}, Took{2, {false, true, true}}),
         Entering{5, 2, true}, {TellRegrouped{5}, Restore{4, Moment::kEntry}});
}

TEST(RecoveryCore, ANewcomerWithoutAWholeMirrorGivesUp) {
  expect_refused(step(Taking{Newcomer{}, whole(5, 2, true)}, Took{2, {false, true, false}}), Off{},
                 {Withdraw{}, Fail{}}, "has left no whole state of step 5");
}

TEST(RecoveryCore, ANewcomerThatRegroupsBeforeItsStepKeepsItsPlace) {
  expect(step(Taking{Entering{5, 2, true}, whole(5, 3)}, Took{3}), Entering{5, 3, true},
         {TellRegrouped{5}});
  expect(step(Taking{Entering{5, 2, false}, whole(5, 2)}, Took{2}), Entering{5, 2, false},
         {TellRegrouped{5}});
  expect_refused(step(Taking{Entering{5, 2, false}, whole(5, 3)}, Took{3}), Off{},
                 {Withdraw{}, Fail{}}, "do all ranks make the same calls?");
}

TEST(RecoveryCore, BetweenStepsTheCallsThatOnlyOthersMadeAreReplayed) {
  expect(step(Taking{Between{5, 1, 0}, whole(5, 3)}, Took{3}), Between{5, 1, 2},
         {TellRegrouped{5}});
  // It had not replayed all of those that it knew.
  expect(step(Taking{Between{5, 1, 1}, whole(5, 3)}, Took{3}), Between{5, 1, 2},
         {TellRegrouped{5}});
}

TEST(RecoveryCore, AStepIsMadeAgainByRanksThatAreLevel) {
  const std::vector<Action> again{TellRegrouped{5}, Restore{5, Moment::kEntry, true}};
  expect(step(Taking{InStep{5, 2}, whole(5, 2, true)}, Took{2}), InStep{5, 2}, again);
  expect(step(Taking{Incomplete{5, 2}, whole(5, 2, true)}, Took{2}), InStep{5, 2}, again);
}

TEST(RecoveryCore, AStepThatOtherRanksHaveCommittedIsOver) {
  expect(step(Taking{Incomplete{5, 2}, whole(6, 3)}, Took{3}), Between{6, 0, 3},
         {TellRegrouped{6}, TellCommitted{6}});
}

TEST(RecoveryCore, AStepThatWasGivenStaysGivenIfTheRanksRegroupOnceMore) {
  State state = step(Taking{Incomplete{5, 2}, whole(6, 3)}, Took{3}).state;
  state = step(state, Regroup{}).state;
  expect(step(state, Met{{whole(6, 3), kNoState}, 0}), Taking{Between{6, 0, 3}, whole(6, 3)},
         {TakeState{0, false}});
  expect(step(Taking{Between{6, 0, 3}, whole(6, 3)}, Took{3}), Between{6, 0, 3},
         {TellRegrouped{6}});
}

TEST(RecoveryCore, TookIsABugWhereNoRankTakesOrTheDonorSaidSomethingElse) {
  expect_never(Took{}, {kSetUp, kPrepared, kEntering, kBetween, kInStep, kRegrouping, kOff});
  EXPECT_THROW(step(kStates[kTaking], Took{1}), Bug);  // two calls
  EXPECT_THROW(step(Taking{Between{5, 0, 0}, whole(6)}, Took{}), Bug);
  EXPECT_THROW(step(Taking{Entering{5, 0}, whole(6)}, Took{}), Bug);
  EXPECT_THROW(step(Taking{InStep{5, 0}, whole(6)}, Took{}), Bug);
  EXPECT_THROW(step(Taking{Incomplete{5, 0}, whole(7)}, Took{}), Bug);
  EXPECT_THROW(step(Taking{InStep{5, 2}, whole(5, 3)}, Took{3}), Bug);
  EXPECT_THROW(step(Taking{Between{5, 2, 0}, whole(5, 1)}, Took{1}), Bug);
}

TEST(RecoveryCore, ARefusalIsToldToTheAgentAndEndsAStandby) {
  for (const Column column : {kSetUp, kEntering, kBetween, kInStep, kRegrouping, kTaking}) {
    expect_refused(step(kStates[column], Refused{"it has a hook"}), Off{}, {TellRefused{}},
                   "it has a hook");
  }
  expect_refused(step(Prepared{}, Refused{"it has a hook"}), Off{.is_standby = true},
                 {TellRefused{}, Fail{}}, "it has a hook");
  expect_ignored(Refused{"it has a hook"}, {kOff});
}

TEST(RecoveryCore, ARankThatLeavesWithdrawsOnce) {
  for (const Column column : {kSetUp, kEntering, kBetween, kInStep, kRegrouping, kTaking}) {
    expect(step(kStates[column], Left{}), Off{}, {Withdraw{}});
    expect(step(kStates[column], Ended{}), Off{}, {});
  }
  expect(step(Prepared{}, Left{}), Off{.is_standby = true}, {Withdraw{}});
  expect(step(Prepared{}, Ended{}), Off{.is_standby = true}, {});
  expect_ignored(Left{}, {kOff});
  expect_ignored(Ended{}, {kOff});
}

}  // namespace
}  // namespace ddprun::recovery
