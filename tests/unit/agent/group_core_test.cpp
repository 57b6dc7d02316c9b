#include "agent/group_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Round kFirst{0};
constexpr Round kSecond{1};

rdzv::WorkerFailure failure(int local_rank, ExitStatus status) {
  rdzv::WorkerFailure out;
  out.rank = local_rank;
  out.local_rank = local_rank;
  out.status = status;
  return out;
}

WorkerEnded ended(int local_rank, Round round = kFirst) { return {round, local_rank, {}}; }
WorkerEnded failed(int local_rank, ExitStatus status, Round round = kFirst) {
  return {round, local_rank, failure(local_rank, status)};
}

rdzv::RoundStart start_of(Round round) {
  rdzv::RoundStart start;
  start.round = round;
  start.world_size = 2;
  return start;
}

class GroupCoreTest : public ::testing::Test {
 protected:
  GroupCore core{GroupConfig{2, 30s, 10s}};

  void run(Round round = kFirst) {
    core.step(rdzv::OpenStore{round});
    core.step(rdzv::RoundStart{start_of(round)});
  }
};

TEST_F(GroupCoreTest, OpensTheStoreWhenTheLeaderAsksAndSaysWhere) {
  EXPECT_THAT(core.step(rdzv::OpenStore{kFirst}), ElementsAre(GroupAction{OpenRoundStore{kFirst}}));
  EXPECT_THAT(core.step(StoreResult{kFirst, 4000, ""}),
              ElementsAre(GroupAction{TellLeader{rdzv::StoreOpened{kFirst, 4000}}}));
  EXPECT_THAT(core.step(StoreResult{kFirst, 0, "no port"}),
              ElementsAre(GroupAction{TellLeader{rdzv::StoreNotOpened{kFirst, "no port"}}}));
}

TEST_F(GroupCoreTest, StartsTheWorkersOfARound) {
  EXPECT_THAT(core.step(start_of(kFirst)),
              ElementsAre(GroupAction{StartWorkers{start_of(kFirst)}}));
}

TEST_F(GroupCoreTest, IsDoneWhenTheLastWorkerEndedWithZero) {
  run();
  EXPECT_THAT(core.step(ended(1)), IsEmpty());
  EXPECT_THAT(core.step(ended(0)), ElementsAre(GroupAction{TellLeader{rdzv::WorkersDone{kFirst}}}));
}

TEST_F(GroupCoreTest, ReportsAFailureAtOnceAndWaitsForTheLeadersWord) {
  run();
  const auto killed = failed(1, ExitStatus::killed(SIGKILL));
  EXPECT_THAT(core.step(killed),
              ElementsAre(GroupAction{TellLeader{rdzv::WorkerFailed{kFirst, *killed.failure}}}));
}

TEST_F(GroupCoreTest, StopsTheOthersWithTermAndContinue) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), ElementsAre(GroupAction{SignalWorker{0, SIGTERM}},
                                                              GroupAction{SignalWorker{0, SIGCONT}},
                                                              GroupAction{ArmTimer{kFirst, 30s}}));
}

TEST_F(GroupCoreTest, ClosesTheRoundWhenTheLastWorkerEndedAndThenAnswers) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(failed(0, ExitStatus::killed(SIGTERM))),
              ElementsAre(GroupAction{CloseRound{kFirst}}));
  auto stopped = failure(0, ExitStatus::killed(SIGTERM));
  stopped.was_told_to_stop = true;
  EXPECT_THAT(core.step(RoundClosed{kFirst}),
              ElementsAre(GroupAction{TellLeader{rdzv::RoundStopped{kFirst, {stopped}}}}));
}

TEST_F(GroupCoreTest, ClosesAtOnceWhenNobodyIsLeftToStop) {
  run();
  core.step(failed(0, ExitStatus::exited(1)));
  core.step(failed(1, ExitStatus::exited(1)));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), ElementsAre(GroupAction{CloseRound{kFirst}}));
}

TEST_F(GroupCoreTest, RunsTheNextRoundWithAllWorkersAgain) {
  run();
  core.step(ended(0));
  core.step(failed(1, ExitStatus::exited(1)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(RoundClosed{kFirst});
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}),
              ElementsAre(GroupAction{OpenRoundStore{kSecond}}));
  EXPECT_THAT(core.step(start_of(kSecond)),
              ElementsAre(GroupAction{StartWorkers{start_of(kSecond)}}));
  EXPECT_THAT(core.step(ended(1, kSecond)), IsEmpty());
  EXPECT_THAT(core.step(ended(0, kSecond)),
              ElementsAre(GroupAction{TellLeader{rdzv::WorkersDone{kSecond}}}));
}

TEST_F(GroupCoreTest, KillsWhoeverOutlivesTheGracePeriod) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(TimerExpired{kFirst}), ElementsAre(GroupAction{SignalWorker{0, SIGKILL}},
                                                           GroupAction{ArmTimer{kFirst, 10s}}));
}

TEST_F(GroupCoreTest, GivesUpOnAWorkerThatOutlivesSigkillAndNamesIt) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(TimerExpired{kFirst});
  const auto actions = core.step(TimerExpired{kFirst});
  ASSERT_EQ(actions.size(), 2U);
  const auto& told = std::get<TellLeader>(actions[0]);
  EXPECT_THAT(std::get<rdzv::NodeStuck>(told.message).sentence,
              ::testing::HasSubstr("local rank 0"));
  EXPECT_EQ(actions[1], GroupAction{CloseRound{kFirst}});
}

TEST_F(GroupCoreTest, AnnouncesItsLeaveBeforeItForwardsTheSignal) {
  run();
  EXPECT_THAT(
      core.step(StopSignal{SIGINT}),
      ElementsAre(GroupAction{TellLeader{rdzv::NodeLeaving{SIGINT}}},
                  GroupAction{SignalWorker{0, SIGINT}}, GroupAction{SignalWorker{0, SIGCONT}},
                  GroupAction{SignalWorker{1, SIGINT}}, GroupAction{SignalWorker{1, SIGCONT}},
                  GroupAction{ArmTimer{kFirst, 30s}}));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), IsEmpty());
}

TEST_F(GroupCoreTest, TheSecondSignalKillsAndTheThirdChangesNothing) {
  run();
  core.step(StopSignal{SIGINT});
  EXPECT_THAT(core.step(StopSignal{SIGINT}), ElementsAre(GroupAction{SignalWorker{0, SIGKILL}},
                                                         GroupAction{SignalWorker{1, SIGKILL}},
                                                         GroupAction{ArmTimer{kFirst, 10s}}));
  EXPECT_THAT(core.step(StopSignal{SIGINT}), IsEmpty());
}

TEST_F(GroupCoreTest, TheFirstSignalDuringARestartLeavesTheGracePeriodAlone) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(StopSignal{SIGTERM}),
              ElementsAre(GroupAction{TellLeader{rdzv::NodeLeaving{SIGTERM}}}));
  EXPECT_THAT(core.step(StopSignal{SIGTERM}), ElementsAre(GroupAction{SignalWorker{0, SIGKILL}},
                                                          GroupAction{ArmTimer{kFirst, 10s}}));
}

TEST_F(GroupCoreTest, APreemptionIsANoticeToTheWorkersAloneWithoutADeadline) {
  run();
  EXPECT_THAT(
      core.step(PreemptSignal{SIGUSR1}),
      ElementsAre(GroupAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}},
                  GroupAction{AskToLeave{0, SIGUSR1}}, GroupAction{AskToLeave{1, SIGUSR1}}));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}), IsEmpty());
  core.step(ended(0));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(GroupAction{CloseRound{kFirst}}));
}

TEST_F(GroupCoreTest, AStopSignalAfterAPreemptionStopsAndTheNextOneKills) {
  run();
  core.step(PreemptSignal{SIGUSR1});
  core.step(rdzv::RoundStop{kFirst});
  core.step(ended(0));
  EXPECT_THAT(
      core.step(StopSignal{SIGTERM}),
      ElementsAre(GroupAction{TellLeader{rdzv::NodeLeaving{SIGTERM}}},
                  GroupAction{SignalWorker{1, SIGTERM}}, GroupAction{SignalWorker{1, SIGCONT}},
                  GroupAction{ArmTimer{kFirst, 30s}}));
  EXPECT_THAT(core.step(StopSignal{SIGTERM}), ElementsAre(GroupAction{SignalWorker{1, SIGKILL}},
                                                          GroupAction{ArmTimer{kFirst, 10s}}));
}

TEST_F(GroupCoreTest, AnswersTheLeaderOnlyWhenItHasAsked) {
  run();
  core.step(StopSignal{SIGINT});
  core.step(failed(0, ExitStatus::killed(SIGINT)));
  EXPECT_THAT(core.step(failed(1, ExitStatus::killed(SIGINT))),
              ElementsAre(GroupAction{CloseRound{kFirst}}));
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  const auto actions = core.step(rdzv::RoundStop{kFirst});
  ASSERT_EQ(actions.size(), 1U);
  const auto& told = std::get<TellLeader>(actions.front());
  EXPECT_EQ(std::get<rdzv::RoundStopped>(told.message).failures.size(), 2U);
}

TEST_F(GroupCoreTest, ClosesTheRoundBeforeItFinishesASuccessfulJob) {
  run();
  core.step(ended(0));
  core.step(ended(1));
  rdzv::JobOutcome outcome;
  EXPECT_THAT(core.step(rdzv::JobEnd{outcome}), ElementsAre(GroupAction{CloseRound{kFirst}}));
  EXPECT_THAT(core.step(RoundClosed{kFirst}), ElementsAre(GroupAction{Finish{outcome}}));
}

TEST_F(GroupCoreTest, AnEndOfTheJobStopsWorkersThatStillRun) {
  run();
  rdzv::JobOutcome outcome;
  outcome.exit_code = 3;
  const auto actions = core.step(rdzv::JobEnd{outcome});
  EXPECT_EQ(actions.front(), (GroupAction{SignalWorker{0, SIGTERM}}));
  core.step(ended(0));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(GroupAction{CloseRound{kFirst}}));
  EXPECT_THAT(core.step(RoundClosed{kFirst}), ElementsAre(GroupAction{Finish{outcome}}));
}

TEST_F(GroupCoreTest, FinishesAtOnceWhenNothingRuns) {
  EXPECT_THAT(core.step(rdzv::JobEnd{}), ElementsAre(GroupAction{Finish{}}));
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}), IsEmpty());
}

TEST_F(GroupCoreTest, ASignalBetweenRoundsIsTheLeadersBusiness) {
  EXPECT_THAT(core.step(StopSignal{SIGTERM}),
              ElementsAre(GroupAction{TellLeader{rdzv::NodeLeaving{SIGTERM}}}));
}

TEST_F(GroupCoreTest, AnswersAStopOfARoundThatItHasAlreadyLeft) {
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}),
              ElementsAre(GroupAction{TellLeader{rdzv::RoundStopped{kFirst, {}}}}));
}

TEST_F(GroupCoreTest, DropsEventsOfAnEarlierRound) {
  run();
  core.step(failed(0, ExitStatus::exited(1)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(ended(1));
  core.step(RoundClosed{kFirst});
  run(kSecond);
  EXPECT_THAT(core.step(failed(0, ExitStatus::exited(1), kFirst)), IsEmpty());
  EXPECT_THAT(core.step(TimerExpired{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(StoreResult{kFirst, 1, ""}), IsEmpty());
}

TEST_F(GroupCoreTest, IgnoresWhatTheTableSaysItIgnores) {
  // Waiting
  EXPECT_THAT(core.step(ended(0)), IsEmpty());
  EXPECT_THAT(core.step(TimerExpired{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  // Running
  run();
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}), IsEmpty());
  EXPECT_THAT(core.step(start_of(kFirst)), IsEmpty());
  EXPECT_THAT(core.step(StoreResult{kFirst, 1, ""}), IsEmpty());
  EXPECT_THAT(core.step(TimerExpired{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  // Stopping
  core.step(StopSignal{SIGTERM});
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}), IsEmpty());
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}), IsEmpty());
  EXPECT_THAT(core.step(start_of(kSecond)), IsEmpty());
  EXPECT_THAT(core.step(StoreResult{kFirst, 1, ""}), IsEmpty());
  // Ended
  core.step(ended(0));
  core.step(ended(1));
  core.step(rdzv::JobEnd{});
  core.step(RoundClosed{kFirst});
  for (const GroupEvent& event : {GroupEvent{rdzv::OpenStore{kFirst}}, GroupEvent{start_of(kFirst)},
                                  GroupEvent{rdzv::RoundStop{kFirst}}, GroupEvent{rdzv::JobEnd{}},
                                  GroupEvent{StoreResult{kFirst, 1, ""}}, GroupEvent{ended(0)},
                                  GroupEvent{StopSignal{SIGTERM}}, GroupEvent{TimerExpired{kFirst}},
                                  GroupEvent{RoundClosed{kFirst}}}) {
    EXPECT_THAT(core.step(event), IsEmpty());
  }
}

}  // namespace
}  // namespace ddprun::agent
