// The health core, row by row of its table, and what makes a node suspect.
#include "agent/core/health_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ddprun::agent::health {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Matcher;

const Finding kSlowPort{Severity::kWarning, "a port has errors"};
const Finding kLostGpu{Severity::kUnfit, "a GPU is lost"};
const Finding kDeadMount{Severity::kUnfit, "a mount is dead"};

Matcher<const Action&> is(const auto& action) {
  return ::testing::VariantWith<std::remove_cvref_t<decltype(action)>>(action);
}
CheckAnswered answer(std::vector<Finding> findings = {}) { return {std::move(findings)}; }

class HealthCoreTest : public ::testing::Test {
 protected:
  void join() {
    core_.step(JoinWanted{});
    core_.step(answer());
  }
  void check_in_background() {
    join();
    core_.step(CheckIsDue{});
  }
  void check_after_suspicion() {
    join();
    core_.step(NodeSuspected{});
  }

  Core core_{/*is_on=*/true};
};

TEST(HealthCoreOff, LetsEverythingGoAtOnce) {
  Core core(/*is_on=*/false);
  EXPECT_THAT(core.step(JoinWanted{}), ElementsAre(is(LetJoin{})));
  EXPECT_THAT(core.step(NodeSuspected{}), IsEmpty());
  EXPECT_THAT(core.step(RestartWanted{}), ElementsAre(is(LetRestart{})));
  EXPECT_THAT(core.step(HoldOver{}), IsEmpty());
  EXPECT_THAT(core.step(CheckIsDue{}), IsEmpty());
}

// ---- no check

TEST_F(HealthCoreTest, TheFirstJoinWaitsForACheck) {
  EXPECT_THAT(core_.step(JoinWanted{}), ElementsAre(is(RunCheck{})));
}

TEST_F(HealthCoreTest, NothingIsSuspectBeforeTheFirstJoin) {
  EXPECT_THAT(core_.step(NodeSuspected{}), IsEmpty());
}

TEST_F(HealthCoreTest, WithoutACheckNothingWaits) {
  join();
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(LetRestart{})));
  EXPECT_THAT(core_.step(HoldOver{}), IsEmpty());
  EXPECT_THAT(core_.step(answer({kLostGpu})), IsEmpty()) << "it was not asked for";
  EXPECT_THAT(core_.step(CheckIsDue{}), ElementsAre(is(RunCheck{})));
}

// ---- the first check

TEST_F(HealthCoreTest, AFitNodeJoins) {
  core_.step(JoinWanted{});
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(ArmTimer{}), is(LetJoin{})));
}

TEST_F(HealthCoreTest, ANodeWithAWarningJoins) {
  core_.step(JoinWanted{});
  EXPECT_THAT(core_.step(answer({kSlowPort})),
              ElementsAre(is(Warn{kSlowPort.sentence}), is(ArmTimer{}), is(LetJoin{})));
}

TEST_F(HealthCoreTest, AnUnfitNodeDoesNotJoin) {
  core_.step(JoinWanted{});
  EXPECT_THAT(
      core_.step(answer({kLostGpu, kSlowPort, kDeadMount})),
      ElementsAre(is(Warn{kSlowPort.sentence}), is(RefuseJoin{"a GPU is lost; a mount is dead"})));
  EXPECT_THAT(core_.step(NodeSuspected{}), IsEmpty());
}

TEST_F(HealthCoreTest, TheFirstCheckGoesOnWhateverHappens) {
  core_.step(JoinWanted{});
  EXPECT_THAT(core_.step(CheckIsDue{}), IsEmpty());
  EXPECT_THAT(core_.step(NodeSuspected{}), IsEmpty());
  EXPECT_THAT(core_.step(HoldOver{}), IsEmpty());
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(ArmTimer{}), is(LetJoin{})));
}

// ---- a check in the background

TEST_F(HealthCoreTest, ACheckInTheBackgroundHoldsNothing) {
  check_in_background();
  EXPECT_THAT(core_.step(CheckIsDue{}), IsEmpty());
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(LetRestart{})));
  EXPECT_THAT(core_.step(HoldOver{}), IsEmpty());
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(ArmTimer{})));
}

TEST_F(HealthCoreTest, AWarningIsGivenOnce) {
  check_in_background();
  EXPECT_THAT(core_.step(answer({kSlowPort})),
              ElementsAre(is(Warn{kSlowPort.sentence}), is(ArmTimer{})));
  core_.step(CheckIsDue{});
  EXPECT_THAT(core_.step(answer({kSlowPort})), ElementsAre(is(ArmTimer{})));
}

TEST_F(HealthCoreTest, AnUnfitNodeIsEvictedAndAgainIfTheReasonIsNews) {
  check_in_background();
  const auto check = [this](std::vector<Finding> findings) {
    core_.step(CheckIsDue{});
    return core_.step(answer(std::move(findings)));
  };
  EXPECT_THAT(core_.step(answer({kLostGpu})), ElementsAre(is(RunCheck{})));
  EXPECT_THAT(core_.step(answer({kLostGpu})),
              ElementsAre(is(Evict{kLostGpu.sentence}), is(ArmTimer{})));
  EXPECT_THAT(check({kLostGpu}), ElementsAre(is(ArmTimer{})));
  EXPECT_THAT(check({kDeadMount}), ElementsAre(is(Evict{kDeadMount.sentence}), is(ArmTimer{})));
  EXPECT_THAT(check({}), ElementsAre(is(TakeBack{}), is(ArmTimer{})));
  EXPECT_THAT(check({}), ElementsAre(is(ArmTimer{})));
}

TEST_F(HealthCoreTest, WhatIsOverAMomentLaterEvictsNoNode) {
  check_in_background();
  EXPECT_THAT(core_.step(answer({kDeadMount})), ElementsAre(is(RunCheck{})));
  EXPECT_THAT(core_.step(answer({})), ElementsAre(is(ArmTimer{})));
}

// It began before what makes the node suspect.
TEST_F(HealthCoreTest, AfterASuspicionACheckBeginsAnew) {
  check_in_background();
  EXPECT_THAT(core_.step(NodeSuspected{}), ElementsAre(is(RunCheck{})));
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(HoldRestart{})));
}

// ---- a check after a suspicion

TEST_F(HealthCoreTest, TheRestartWaitsForTheCheckAfterASuspicion) {
  check_after_suspicion();
  EXPECT_THAT(core_.step(CheckIsDue{}), IsEmpty());
  EXPECT_THAT(core_.step(NodeSuspected{}), IsEmpty()) << "other workers fail as well";
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(HoldRestart{})));
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(LetRestart{}), is(ArmTimer{})));
}

TEST_F(HealthCoreTest, AnAnswerThatComesBeforeTheRestartHoldsNothing) {
  check_after_suspicion();
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(ArmTimer{})));
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(LetRestart{})));
}

TEST_F(HealthCoreTest, AnUnfitNodeIsEvictedBeforeTheRestart) {
  check_after_suspicion();
  core_.step(RestartWanted{});
  EXPECT_THAT(core_.step(answer({kSlowPort, kLostGpu})),
              ElementsAre(is(Warn{kSlowPort.sentence}), is(Evict{kLostGpu.sentence}),
                          is(LetRestart{}), is(ArmTimer{})));
  core_.step(NodeSuspected{});
  EXPECT_THAT(core_.step(answer({kLostGpu})),
              ElementsAre(is(Evict{kLostGpu.sentence}), is(ArmTimer{})))
      << "it has failed once more";
}

TEST_F(HealthCoreTest, AStopDoesNotWait) {
  check_after_suspicion();
  core_.step(RestartWanted{});
  EXPECT_THAT(core_.step(HoldOver{}), ElementsAre(is(LetRestart{})));
  EXPECT_THAT(core_.step(answer()), ElementsAre(is(ArmTimer{}))) << "it was let go before";
}

TEST_F(HealthCoreTest, AfterAStopNothingIsHeld) {
  check_after_suspicion();
  EXPECT_THAT(core_.step(HoldOver{}), IsEmpty());
  EXPECT_THAT(core_.step(RestartWanted{}), ElementsAre(is(LetRestart{})));
}

// ---- what makes a node suspect

WorkerEnded failed() {
  WorkerEnded ended;
  ended.failure.emplace();
  ended.failure->status = ExitStatus::exited(1);
  return ended;
}

TEST(HealthSuspicion, ArisesWhenAWorkerFailsFirst) {
  EXPECT_TRUE(Suspicion().arises(failed(), /*is_running=*/true));
  EXPECT_TRUE(Suspicion().arises(WorkerHung{}, /*is_running=*/true));
}

TEST(HealthSuspicion, DoesNotArise) {
  EXPECT_FALSE(Suspicion().arises(failed(), /*is_running=*/false)) << "while workers are stopped";
  EXPECT_FALSE(Suspicion().arises(WorkerEnded{}, /*is_running=*/true)) << "with success";
  EXPECT_FALSE(Suspicion().arises(StopSignal{SIGTERM}, /*is_running=*/true));
  WorkerEnded told = failed();
  told.failure->was_told_to_stop = true;
  EXPECT_FALSE(Suspicion().arises(told, /*is_running=*/true));
  WorkerEnded asked_for = failed();
  asked_for.failure->asked_by = "ddpctl replace";
  EXPECT_FALSE(Suspicion().arises(asked_for, /*is_running=*/true));
  WorkerEnded left = failed();
  left.has_left = true;
  EXPECT_FALSE(Suspicion().arises(left, /*is_running=*/true));
}

TEST(HealthSuspicion, IsNotOfANodeWhosePeerIsGone) {
  Suspicion suspicion;
  EXPECT_FALSE(suspicion.arises(rdzv::GroupBroken{}, /*is_running=*/true));
  EXPECT_FALSE(suspicion.arises(failed(), /*is_running=*/true));
  EXPECT_FALSE(suspicion.arises(rdzv::RoundStart{}, /*is_running=*/false));
  EXPECT_TRUE(suspicion.arises(failed(), /*is_running=*/true)) << "in the next round";
}

}  // namespace
}  // namespace ddprun::agent::health
