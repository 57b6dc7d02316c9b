#include "agent/core/node_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <functional>
#include <utility>
#include <vector>

#include "rendezvous/common/exit_codes.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Round kFirst{0};
constexpr Round kSecond{1};
const NodeAction kGoodbye{TellLeader{rdzv::Goodbye{}}};

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

WorkerEnded replaceable(int local_rank, std::int64_t committed = 7, std::uint32_t generation = 0) {
  WorkerEnded ended = failed(local_rank, ExitStatus::killed(SIGKILL));
  ended.replaceable = Replaceable{committed, generation};
  return ended;
}
rdzv::ReplaceWorker replace(std::uint32_t generation, int rank) {
  return {kFirst, generation, rank, failure(rank, ExitStatus::killed(SIGKILL)), 1, 3};
}
NodeAction replaces(std::uint32_t generation, int rank, std::optional<int> local_rank) {
  return Replace{kFirst, generation, rank, local_rank, failure(rank, ExitStatus::killed(SIGKILL)),
                 1,      3};
}
NodeAction tells(rdzv::ToLeader message) { return TellLeader{std::move(message)}; }

rdzv::RoundStart start_of(Round round) {
  rdzv::RoundStart start;
  start.round = round;
  start.world_size = 2;
  return start;
}

// What follows Finish at once, as the `timer`-th that was armed.
std::vector<NodeAction> finish(const rdzv::JobOutcome& outcome, std::uint32_t timer) {
  return {Finish{outcome}, TakeStep{EndStep::kLogs}, ArmTimer{TimerId{timer}, 2s}};
}

std::string names_of(const std::vector<NodeAction>& actions) {
  constexpr const char* kNames[] = {
      "OpenRoundStore", "StartWorkers", "SignalWorker", "AskToLeave",    "TellGroupBroken",
      "ArmTimer",       "GraceOver",    "TakeStacks",   "CloseRound",    "CloseStore",
      "TellLeader",     "Join",         "Announce",     "Finish",        "TakeStep",
      "Exit",           "Replace",      "ShowLate",     "LookAtWorkers", "WaitForSaving",
      "ShowStarting"};
  static_assert(std::size(kNames) == std::variant_size_v<NodeAction>);
  constexpr const char* kTold[] = {
      "NodeHello",       "StoreOpened",       "StoreNotOpened", "WorkerFailed",
      "SomeWorkersDone", "WorkersDone",       "RoundStopped",   "NodeLeaving",
      "NodeStuck",       "Goodbye",           "RestartAsked",   "StopAsked",
      "WorkersRecover",  "WorkerReplaceable", "Regrouped",      "CannotRegroup"};
  static_assert(std::size(kTold) == std::variant_size_v<rdzv::ToLeader>);
  std::string text;
  for (const NodeAction& action : actions) {
    const auto* tell = std::get_if<TellLeader>(&action);
    const auto* signal = std::get_if<SignalWorker>(&action);
    if (signal != nullptr && signal->signal == SIGCONT) continue;
    if (!text.empty()) text += " ";
    text += tell != nullptr     ? kTold[tell->message.index()]
            : signal != nullptr ? signal_name(signal->signal)
                                : kNames[action.index()];
  }
  return text;
}

class NodeCoreTest : public ::testing::Test {
 protected:
  NodeCore core{NodeConfig{2, 30s, 10s}};

  void run(Round round = kFirst) {
    core.step(rdzv::OpenStore{round});
    core.step(rdzv::RoundStart{start_of(round)});
  }
};

TEST_F(NodeCoreTest, OpensTheStoreWhenTheLeaderAsksAndSaysWhere) {
  EXPECT_THAT(core.step(rdzv::OpenStore{kFirst}), ElementsAre(NodeAction{OpenRoundStore{kFirst}}));
  EXPECT_THAT(core.step(StoreResult{kFirst, 4000, ""}),
              ElementsAre(NodeAction{TellLeader{rdzv::StoreOpened{kFirst, 4000}}}));
  EXPECT_THAT(core.step(StoreResult{kFirst, 0, "no port"}),
              ElementsAre(NodeAction{TellLeader{rdzv::StoreNotOpened{kFirst, "no port"}}}));
}

TEST_F(NodeCoreTest, StartsTheWorkersOfARound) {
  EXPECT_THAT(core.step(start_of(kFirst)), ElementsAre(NodeAction{StartWorkers{start_of(kFirst)}}));
}

TEST_F(NodeCoreTest, SaysWhichWorkersHaveNotStartedWhenTheyAreLate) {
  run();
  const StartIsLate late{kFirst};
  EXPECT_THAT(core.step(late), ElementsAre(NodeAction{ShowStarting{kFirst, {0, 1}}}));
  core.step(WorkerStarted{kFirst, 0});
  EXPECT_THAT(core.step(late), ElementsAre(NodeAction{ShowStarting{kFirst, {1}}}));
  core.step(WorkerStarted{kSecond, 1});
  EXPECT_THAT(core.step(late), ElementsAre(NodeAction{ShowStarting{kFirst, {1}}}))
      << "another round's";
  core.step(failed(1, ExitStatus::exited(127)));
  EXPECT_THAT(core.step(late), IsEmpty()) << "it will not start any more";
}

TEST_F(NodeCoreTest, StopsWorkersThatHaveNotStartedLikeAnyOther) {
  run();
  core.step(WorkerStarted{kFirst, 0});
  EXPECT_EQ(names_of(core.step(rdzv::RoundStop{kFirst})), "SIGTERM SIGTERM ArmTimer");
  EXPECT_THAT(core.step(StartIsLate{kFirst}), IsEmpty());
}

TEST_F(NodeCoreTest, IsDoneWhenTheLastWorkerEndedWithZero) {
  run();
  EXPECT_THAT(core.step(ended(1)),
              ElementsAre(NodeAction{TellLeader{rdzv::SomeWorkersDone{kFirst}}}));
  EXPECT_THAT(core.step(ended(0)), ElementsAre(NodeAction{TellLeader{rdzv::WorkersDone{kFirst}}}));
}

TEST_F(NodeCoreTest, ReportsAFailureAtOnceAndWaitsForTheLeadersWord) {
  run();
  const auto killed = failed(1, ExitStatus::killed(SIGKILL));
  EXPECT_THAT(core.step(killed),
              ElementsAre(NodeAction{TellGroupBroken{kFirst, 1}},
                          NodeAction{TellLeader{rdzv::WorkerFailed{kFirst, *killed.failure}}}));
  const auto last = failed(0, ExitStatus::exited(1));
  EXPECT_THAT(core.step(last),
              ElementsAre(NodeAction{TellLeader{rdzv::WorkerFailed{kFirst, *last.failure}}}))
      << "nobody is left to tell";
}

TEST_F(NodeCoreTest, TellsItsWorkersOfOneThatIsGoneOnAnotherNode) {
  const rdzv::GroupBroken broken{kFirst, 7};
  EXPECT_THAT(core.step(broken), IsEmpty());
  run();
  EXPECT_THAT(core.step(rdzv::GroupBroken{kSecond, 7}), IsEmpty()) << "of another round";
  EXPECT_THAT(core.step(broken), ElementsAre(NodeAction{TellGroupBroken{kFirst, 7}}));
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_THAT(core.step(broken), ElementsAre(NodeAction{TellGroupBroken{kFirst, 7}}))
      << "preempted ones finish their step first";
}

TEST_F(NodeCoreTest, StopsTheOthersWithTermAndContinue) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  EXPECT_THAT(
      core.step(rdzv::RoundStop{kFirst}),
      ElementsAre(NodeAction{SignalWorker{0, SIGTERM}}, NodeAction{SignalWorker{0, SIGCONT}},
                  NodeAction{ArmTimer{TimerId{1}, 30s}}));
}

// What is planned leaves the workers their whole time; only when a peer of theirs is gone have they
// nothing left that they could save together.
TEST(NodeCore, LeavesAShortGraceWhenAPeerIsGoneAndTheWholeOneElse) {
  using Why = rdzv::RoundStop::Why;
  const std::vector<std::pair<NodeEvent, std::chrono::milliseconds>> stops = {
      {rdzv::RoundStop{kFirst, Why::kFailure}, 2s},
      {rdzv::DeclaredLost{}, 2s},
      {rdzv::RoundStop{kFirst, Why::kPlanned}, 30s},
      {rdzv::JobEnd{}, 30s},
      {LeaderLost{"gone"}, 30s},
      {StopSignal{SIGTERM}, 30s}};
  for (const auto& [stop, grace] : stops) {
    NodeCore core{NodeConfig{1, 30s, 10s, true, 2s}};
    core.step(start_of(kFirst));
    EXPECT_THAT(core.step(stop), Contains(NodeAction{ArmTimer{TimerId{1}, grace}}))
        << "event " << stop.index();
  }
}

TEST_F(NodeCoreTest, AFailureAfterAStopDoesNotShortenTheGrace) {
  run();
  core.step(StopSignal{SIGTERM});
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure}), IsEmpty());
}

TEST_F(NodeCoreTest, ClosesTheRoundWhenTheLastWorkerEndedAndThenAnswers) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(failed(0, ExitStatus::killed(SIGTERM))),
              ElementsAre(NodeAction{CloseRound{kFirst}}));
  auto stopped = failure(0, ExitStatus::killed(SIGTERM));
  stopped.was_told_to_stop = true;
  EXPECT_THAT(core.step(RoundClosed{kFirst}),
              ElementsAre(NodeAction{TellLeader{rdzv::RoundStopped{kFirst, {stopped}}}}));
}

TEST_F(NodeCoreTest, TellsWhichRanksHadEndedWithZeroBeforeTheStop) {
  run();
  core.step(ended(1));
  core.step(rdzv::RoundStop{kFirst});
  core.step(ended(0));
  const std::vector<int> done{start_of(kFirst).rank_offset + 1};
  EXPECT_THAT(core.step(RoundClosed{kFirst}),
              ElementsAre(NodeAction{TellLeader{rdzv::RoundStopped{kFirst, {}, done}}}));
}

TEST_F(NodeCoreTest, ClosesAtOnceWhenNobodyIsLeftToStop) {
  run();
  core.step(failed(0, ExitStatus::exited(1)));
  core.step(failed(1, ExitStatus::exited(1)));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), ElementsAre(NodeAction{CloseRound{kFirst}}));
}

TEST_F(NodeCoreTest, RunsTheNextRoundWithAllWorkersAgain) {
  run();
  core.step(ended(0));
  core.step(failed(1, ExitStatus::exited(1)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(RoundClosed{kFirst});
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}),
              ElementsAre(NodeAction{OpenRoundStore{kSecond}}));
  EXPECT_THAT(core.step(start_of(kSecond)),
              ElementsAre(NodeAction{StartWorkers{start_of(kSecond)}}));
  EXPECT_THAT(core.step(ended(1, kSecond)),
              ElementsAre(NodeAction{TellLeader{rdzv::SomeWorkersDone{kSecond}}}));
  EXPECT_THAT(core.step(ended(0, kSecond)),
              ElementsAre(NodeAction{TellLeader{rdzv::WorkersDone{kSecond}}}));
}

TEST_F(NodeCoreTest, TakesTheStacksOfWhoeverOutlivesTheGracePeriodAndKillsIt) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(TimerExpired{TimerId{1}}),
              ElementsAre(NodeAction{GraceOver{30s, false}}, NodeAction{TakeStacks{kFirst}},
                          NodeAction{ArmTimer{TimerId{2}, 5s}}));
  EXPECT_THAT(core.step(StacksTaken{kFirst}), ElementsAre(NodeAction{SignalWorker{0, SIGKILL}},
                                                          NodeAction{ArmTimer{TimerId{3}, 10s}}));
  EXPECT_THAT(core.step(StacksTaken{kFirst}), IsEmpty());
}

TEST_F(NodeCoreTest, StacksThatAreNotTakenInTimeHoldUpNoKill) {
  run();
  core.step(rdzv::RoundStop{kFirst});
  core.step(ended(0));
  core.step(TimerExpired{TimerId{1}});
  EXPECT_THAT(
      core.step(TimerExpired{TimerId{2}}),
      ElementsAre(NodeAction{SignalWorker{1, SIGKILL}}, NodeAction{ArmTimer{TimerId{3}, 10s}}));
  EXPECT_THAT(core.step(StacksTaken{kFirst}), IsEmpty());
}

TEST_F(NodeCoreTest, ASecondSignalDoesNotWaitForStacks) {
  run();
  core.step(StopSignal{SIGINT});
  core.step(ended(0));
  core.step(TimerExpired{TimerId{1}});
  EXPECT_THAT(core.step(StopSignal{SIGINT}), ElementsAre(NodeAction{SignalWorker{1, SIGKILL}},
                                                         NodeAction{ArmTimer{TimerId{3}, 10s}}));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(NodeAction{CloseRound{kFirst}}));
}

// They wait for a peer that is gone, or nobody wants to know.
TEST(NodeCore, TakesNoStacksAfterAFailureAndWithoutAGrace) {
  using Why = rdzv::RoundStop::Why;
  NodeCore after_failure{NodeConfig{1, 30s, 10s, true, 2s}};
  after_failure.step(start_of(kFirst));
  after_failure.step(rdzv::RoundStop{kFirst, Why::kFailure});
  EXPECT_THAT(after_failure.step(TimerExpired{TimerId{1}}),
              ElementsAre(NodeAction{GraceOver{2s, true}}, NodeAction{SignalWorker{0, SIGKILL}},
                          NodeAction{ArmTimer{TimerId{2}, 10s}}));
  NodeCore at_once{NodeConfig{1, 0s, 10s}};
  at_once.step(start_of(kFirst));
  at_once.step(rdzv::RoundStop{kFirst, Why::kPlanned});
  EXPECT_THAT(at_once.step(TimerExpired{TimerId{1}}),
              ElementsAre(NodeAction{GraceOver{0s, false}}, NodeAction{SignalWorker{0, SIGKILL}},
                          NodeAction{ArmTimer{TimerId{2}, 10s}}));
}

// ---- after a failure

const WorkerSeen kNoHandler{.has_record = true};
const WorkerSeen kSaves{.handles_stop = true, .has_record = true};
const WorkerSeen kNotKnown{.handles_stop = true};
const WorkerSeen kWithGpu{.handles_stop = true, .has_gpu = true};
WorkerSeen in_call(std::chrono::milliseconds since) {
  return {.handles_stop = true, .has_record = true, .in_call = since};
}

// Two workers, stopped after a failure.
class AfterFailureTest : public NodeCoreTest {
 protected:
  AfterFailureTest() {
    run();
    core.step(rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure});
  }
  // The timer that is armed expires, and then the workers are seen as they are.
  void look(const WorkerSeen& one, const WorkerSeen& other) {
    EXPECT_THAT(core.step(TimerExpired{TimerId{++timer_}}),
                ElementsAre(NodeAction{LookAtWorkers{kFirst, SIGTERM}}));
    actions_ = core.step(WorkersSeen{kFirst, {one, other}});
  }
  NodeAction arms(std::chrono::milliseconds after) { return ArmTimer{TimerId{timer_ + 1}, after}; }

  std::uint32_t timer_ = 0;
  std::vector<NodeAction> actions_;  // that followed
};

TEST(AfterFailure, AWorkerThatCannotSaveHasOneSecond) {
  for (const WorkerSeen& worker : {kNoHandler, kNotKnown, in_call(1s), in_call(2min)}) {
    NodeCore core{NodeConfig{1, 30s, 10s}};
    core.step(start_of(kFirst));
    EXPECT_THAT(core.step(rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure}),
                Contains(NodeAction{ArmTimer{TimerId{1}, 1s}}));
    core.step(TimerExpired{TimerId{1}});
    EXPECT_THAT(core.step(WorkersSeen{kFirst, {worker}}),
                ElementsAre(NodeAction{GraceOver{1s, true}}, NodeAction{SignalWorker{0, SIGKILL}},
                            NodeAction{ArmTimer{TimerId{2}, 10s}}));
  }
}

TEST_F(AfterFailureTest, AWorkerThatMaySaveHasItsTimeUntilItEntersACollective) {
  look(kNoHandler, kSaves);
  EXPECT_THAT(actions_,
              ElementsAre(NodeAction{GraceOver{1s, true}}, NodeAction{SignalWorker{0, SIGKILL}},
                          NodeAction{WaitForSaving{{1}, 29s}}, arms(100ms)));
  core.step(ended(0));
  look({}, kSaves);
  EXPECT_THAT(actions_, ElementsAre(arms(100ms))) << "it is said once";
  look({}, in_call(40ms));
  EXPECT_THAT(actions_, ElementsAre(arms(100ms)));
  look({}, in_call(970ms));
  EXPECT_THAT(actions_, ElementsAre(arms(30ms)));
  look({}, in_call(1s));
  EXPECT_THAT(actions_, ElementsAre(NodeAction{GraceOver{1330ms, true}},
                                    NodeAction{SignalWorker{1, SIGKILL}}, arms(10s)));
}

TEST_F(AfterFailureTest, AWorkerThatIsKilledWhileAnotherOneSavesIsKilledOnce) {
  look(kNoHandler, kSaves);
  look(kNoHandler, kSaves);
  EXPECT_THAT(actions_, ElementsAre(arms(100ms)));
  core.step(ended(1));
  look(kNoHandler, {});
  EXPECT_THAT(actions_, ElementsAre(arms(10s))) << "it has its time to end";
  core.step(TimerExpired{TimerId{++timer_}});
  EXPECT_THAT(core.step(RoundClosed{kFirst}), Contains(tells(rdzv::RoundStopped{kFirst, {}})));
}

TEST_F(AfterFailureTest, AWorkerWithAGpuHasFiveSeconds) {
  look(kWithGpu, kWithGpu);
  EXPECT_THAT(actions_, ElementsAre(arms(100ms)));
  for (int i = 0; i < 39; ++i) look(kWithGpu, kWithGpu);
  look(kWithGpu, kWithGpu);
  EXPECT_THAT(actions_,
              ElementsAre(NodeAction{GraceOver{5s, true}}, NodeAction{SignalWorker{0, SIGKILL}},
                          NodeAction{SignalWorker{1, SIGKILL}}, arms(10s)));
}

TEST_F(AfterFailureTest, NoWorkerHasMoreTimeThanAfterAStop) {
  look(kSaves, kSaves);
  for (int i = 0; i < 289; ++i) look(kSaves, kSaves);
  actions_ = core.step(TimerExpired{TimerId{++timer_}});
  EXPECT_THAT(actions_,
              ElementsAre(NodeAction{GraceOver{30s, true}}, NodeAction{SignalWorker{0, SIGKILL}},
                          NodeAction{SignalWorker{1, SIGKILL}}, arms(10s)));
}

TEST_F(AfterFailureTest, ASecondSignalKillsWorkersThatSave) {
  look(kSaves, kSaves);
  core.step(StopSignal{SIGINT});
  EXPECT_EQ(names_of(core.step(StopSignal{SIGINT})), "SIGKILL SIGKILL ArmTimer");
}

// As when the grace is over and a second signal comes in the same moment: the timer of the grace is
// ready already when that of the kill is armed.
TEST_F(NodeCoreTest, ATimerThatWasReplacedIsNotTakenForTheOneThatReplacedIt) {
  run();
  core.step(StopSignal{SIGINT});
  core.step(StopSignal{SIGINT});
  EXPECT_THAT(core.step(TimerExpired{TimerId{1}}), IsEmpty());
}

TEST_F(NodeCoreTest, GivesUpOnAWorkerThatOutlivesSigkillAndNamesIt) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(TimerExpired{TimerId{1}});
  core.step(StacksTaken{kFirst});
  const auto actions = core.step(TimerExpired{TimerId{3}});
  ASSERT_EQ(actions.size(), 2U);
  const auto& told = std::get<TellLeader>(actions[0]);
  EXPECT_THAT(std::get<rdzv::NodeStuck>(told.message).sentence,
              ::testing::HasSubstr("local rank 0"));
  EXPECT_EQ(actions[1], NodeAction{CloseRound{kFirst}});
}

TEST_F(NodeCoreTest, KillsAWorkerThatHangsAndReportsItsEndAsAFailure) {
  run();
  EXPECT_THAT(core.step(WorkerHung{kFirst, 1}), ElementsAre(NodeAction{SignalWorker{1, SIGKILL}},
                                                            NodeAction{ArmTimer{TimerId{1}, 10s}}));
  const auto actions = core.step(failed(1, ExitStatus::killed(SIGKILL)));
  EXPECT_THAT(actions, Contains(NodeAction{TellLeader{
                           rdzv::WorkerFailed{kFirst, failure(1, ExitStatus::killed(SIGKILL))}}}));
  EXPECT_THAT(core.step(TimerExpired{TimerId{1}}), IsEmpty()) << "it has ended";
  EXPECT_THAT(core.step(WorkerHung{kFirst, 1}), IsEmpty());
  EXPECT_THAT(core.step(WorkerHung{kSecond, 0}), IsEmpty()) << "of another round";
}

TEST_F(NodeCoreTest, AWorkerThatHangsHasItsTimeLimitInAPreemptedNodeToo) {
  run();
  core.step(WorkerHung{kFirst, 1});
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_EQ(names_of(core.step(TimerExpired{TimerId{1}})), "SIGTERM SIGTERM ArmTimer NodeLeaving");
}

TEST_F(NodeCoreTest, WorkersOfAPreemptedNodeHaveTheirTimeThoughOneThatHungHasEnded) {
  run();
  core.step(WorkerHung{kFirst, 1});
  core.step(failed(1, ExitStatus::killed(SIGKILL)));
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_THAT(core.step(TimerExpired{TimerId{1}}), IsEmpty());
}

TEST_F(NodeCoreTest, GivesUpOnAWorkerThatHangsInTheKernel) {
  run();
  core.step(WorkerHung{kFirst, 1});
  const auto stops = core.step(TimerExpired{TimerId{1}});
  EXPECT_EQ(stops.front(), (NodeAction{SignalWorker{0, SIGTERM}})) << "as after a failure";
  core.step(ended(0));
  core.step(TimerExpired{TimerId{2}});
  core.step(WorkersSeen{kFirst, {{}, {}}});
  const auto gives_up = core.step(TimerExpired{TimerId{3}});
  ASSERT_FALSE(gives_up.empty());
  const auto* told = std::get_if<TellLeader>(&gives_up.front());
  ASSERT_NE(told, nullptr);
  EXPECT_TRUE(std::holds_alternative<rdzv::NodeStuck>(told->message));
}

TEST_F(NodeCoreTest, AnnouncesItsLeaveBeforeItForwardsTheSignal) {
  run();
  EXPECT_THAT(core.step(StopSignal{SIGINT}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGINT}}},
                          NodeAction{SignalWorker{0, SIGINT}}, NodeAction{SignalWorker{0, SIGCONT}},
                          NodeAction{SignalWorker{1, SIGINT}}, NodeAction{SignalWorker{1, SIGCONT}},
                          NodeAction{ArmTimer{TimerId{1}, 30s}}));
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), IsEmpty());
}

TEST_F(NodeCoreTest, TheSecondSignalKillsAndTheThirdChangesNothing) {
  run();
  core.step(StopSignal{SIGINT});
  EXPECT_THAT(core.step(StopSignal{SIGINT}), ElementsAre(NodeAction{SignalWorker{0, SIGKILL}},
                                                         NodeAction{SignalWorker{1, SIGKILL}},
                                                         NodeAction{ArmTimer{TimerId{2}, 10s}}));
  EXPECT_THAT(core.step(StopSignal{SIGINT}), IsEmpty());
}

TEST_F(NodeCoreTest, TheFirstSignalDuringARestartLeavesTheGracePeriodAlone) {
  run();
  core.step(failed(1, ExitStatus::exited(3)));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(StopSignal{SIGTERM}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGTERM}}}));
  EXPECT_THAT(core.step(StopSignal{SIGTERM}), ElementsAre(NodeAction{SignalWorker{0, SIGKILL}},
                                                          NodeAction{ArmTimer{TimerId{2}, 10s}}));
}

TEST_F(NodeCoreTest, APreemptionIsANoticeToTheWorkersAloneWithoutADeadline) {
  run();
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}),
              ElementsAre(NodeAction{AskToLeave{0, SIGUSR1}}, NodeAction{AskToLeave{1, SIGUSR1}}));
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}), IsEmpty());
  EXPECT_THAT(core.step(ended(0)), IsEmpty());
  // The other nodes' workers were left alone until here: they take their last step together.
  EXPECT_THAT(core.step(ended(1)),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}},
                          NodeAction{CloseRound{kFirst}}));
}

TEST_F(NodeCoreTest, APreemptedNodeSaysSoWhenTheRoundEndsAndLeavesItsWorkersTheirTime) {
  run();
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}}));
  core.step(ended(0));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(NodeAction{CloseRound{kFirst}}));
}

TEST_F(NodeCoreTest, APreemptedNodeWhoseWorkersHadEndedLeavesAtOnce) {
  run();
  core.step(ended(0));
  core.step(ended(1));
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}},
                          NodeAction{CloseRound{kFirst}}));
}

TEST_F(NodeCoreTest, APreemptionThatComesAfterTheRoundsEndIsToldOnce) {
  run();
  core.step(rdzv::RoundStop{kFirst});  // another node was preempted a moment before
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}}));
  EXPECT_THAT(core.step(PreemptSignal{SIGUSR1}), IsEmpty());
}

TEST_F(NodeCoreTest, AStopSignalAfterAPreemptionStopsAndTheNextOneKills) {
  run();
  core.step(PreemptSignal{SIGUSR1});
  core.step(ended(0));
  EXPECT_THAT(
      core.step(StopSignal{SIGTERM}),
      ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}},
                  NodeAction{SignalWorker{1, SIGTERM}}, NodeAction{SignalWorker{1, SIGCONT}},
                  NodeAction{ArmTimer{TimerId{1}, 30s}}))
      << "it leaves for the reason that came first";
  EXPECT_THAT(core.step(StopSignal{SIGTERM}), ElementsAre(NodeAction{SignalWorker{1, SIGKILL}},
                                                          NodeAction{ArmTimer{TimerId{2}, 10s}}));
}

TEST_F(NodeCoreTest, AnswersTheLeaderOnlyWhenItHasAsked) {
  run();
  core.step(StopSignal{SIGINT});
  core.step(failed(0, ExitStatus::killed(SIGINT)));
  EXPECT_THAT(core.step(failed(1, ExitStatus::killed(SIGINT))),
              ElementsAre(NodeAction{CloseRound{kFirst}}));
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  const auto actions = core.step(rdzv::RoundStop{kFirst});
  ASSERT_EQ(actions.size(), 1U);
  const auto& told = std::get<TellLeader>(actions.front());
  EXPECT_EQ(std::get<rdzv::RoundStopped>(told.message).failures.size(), 2U);
}

TEST_F(NodeCoreTest, ClosesTheRoundBeforeItFinishesASuccessfulJob) {
  run();
  core.step(ended(0));
  core.step(ended(1));
  rdzv::JobOutcome outcome;
  EXPECT_THAT(core.step(rdzv::JobEnd{outcome}),
              ElementsAre(kGoodbye, NodeAction{CloseRound{kFirst, /*spares_orphans=*/true}}));
  EXPECT_EQ(core.step(RoundClosed{kFirst}), finish(outcome, 1));
}

// The workers of this node have succeeded each time.
TEST_F(NodeCoreTest, OrphansAreSparedAfterTheSuccessOfTheJobOnly) {
  using Kind = rdzv::JobOutcome::Kind;
  const auto job_end = [](Kind kind) {
    rdzv::JobOutcome outcome;
    outcome.kind = kind;
    return NodeEvent{rdzv::JobEnd{outcome}};
  };
  const auto spares = [](NodeConfig config, const NodeEvent& last) {
    NodeCore its{config};
    its.step(rdzv::OpenStore{kFirst});
    its.step(rdzv::RoundStart{start_of(kFirst)});
    its.step(ended(0));
    EXPECT_EQ(names_of(its.step(ended(1))), "WorkersDone") << "and nothing is closed yet";
    const auto actions = its.step(last);
    return std::ranges::count(actions, NodeAction{CloseRound{kFirst, true}}) == 1;
  };
  const NodeConfig config{.local_world_size = 2, .hosts_leader = false};
  EXPECT_TRUE(spares(config, job_end(Kind::kSucceeded)));
  EXPECT_FALSE(spares(config, job_end(Kind::kFailed)));
  EXPECT_FALSE(spares(config, job_end(Kind::kStopped)));
  EXPECT_FALSE(spares(config, rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure}));
  EXPECT_FALSE(spares(config, StopSignal{SIGTERM}));
  EXPECT_FALSE(spares(config, LeaderLost{"it is gone"}));
  NodeConfig killing = config;
  killing.kills_orphans = true;
  EXPECT_FALSE(spares(killing, job_end(Kind::kSucceeded)));
}

TEST_F(NodeCoreTest, AnEndOfTheJobStopsWorkersThatStillRun) {
  run();
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kFailed;
  outcome.exit_code = 3;
  const auto actions = core.step(rdzv::JobEnd{outcome});
  EXPECT_EQ(actions.at(0), kGoodbye);
  EXPECT_EQ(actions.at(1), (NodeAction{SignalWorker{0, SIGTERM}}));
  core.step(ended(0));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(NodeAction{CloseRound{kFirst}}));
  EXPECT_EQ(core.step(RoundClosed{kFirst}), finish(outcome, 2));
}

TEST_F(NodeCoreTest, FinishesAtOnceWhenNothingRuns) {
  EXPECT_EQ(names_of(core.step(rdzv::JobEnd{})), "Goodbye Finish TakeStep ArmTimer");
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}), IsEmpty());
}

TEST_F(NodeCoreTest, ASignalBetweenRoundsIsTheLeadersBusiness) {
  EXPECT_THAT(core.step(StopSignal{SIGTERM}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGTERM}}}));
}

TEST_F(NodeCoreTest, AnswersAStopOfARoundThatItHasAlreadyLeft) {
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}),
              ElementsAre(NodeAction{TellLeader{rdzv::RoundStopped{kFirst, {}}}}));
}

TEST_F(NodeCoreTest, DropsEventsOfAnEarlierRound) {
  run();
  core.step(failed(0, ExitStatus::exited(1)));
  core.step(rdzv::RoundStop{kFirst});
  core.step(ended(1));
  core.step(RoundClosed{kFirst});
  run(kSecond);
  EXPECT_THAT(core.step(failed(0, ExitStatus::exited(1), kFirst)), IsEmpty());
  EXPECT_THAT(core.step(TimerExpired{TimerId{1}}), IsEmpty());
  EXPECT_THAT(core.step(StacksTaken{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(rdzv::RoundStop{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(RoundClosed{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(StoreResult{kFirst, 1, ""}), IsEmpty());
}

TEST_F(NodeCoreTest, DropsWhatWouldBeginARoundThatItHasRun) {
  run(kSecond);
  core.step(rdzv::RoundStop{kSecond});
  core.step(ended(0, kSecond));
  core.step(ended(1, kSecond));
  core.step(RoundClosed{kSecond});
  for (const Round round : {kFirst, kSecond}) {
    EXPECT_THAT(core.step(rdzv::OpenStore{round}), IsEmpty());
    EXPECT_THAT(core.step(start_of(round)), IsEmpty());
  }
}

TEST_F(NodeCoreTest, ClosesAStoreWhoseRoundNeverBegan) {
  core.step(rdzv::OpenStore{kFirst});
  EXPECT_THAT(core.step(rdzv::OpenStore{kSecond}),
              ElementsAre(NodeAction{CloseStore{kFirst}}, NodeAction{OpenRoundStore{kSecond}}));
  const auto elsewhere = start_of(Round{2});
  EXPECT_THAT(core.step(elsewhere),
              ElementsAre(NodeAction{CloseStore{kSecond}}, NodeAction{StartWorkers{elsewhere}}));
}

TEST_F(NodeCoreTest, FinishesWithTheSentenceOfARefusal) {
  const auto actions = core.step(rdzv::Refused{"give every node the same --nnodes"});
  const auto& outcome = std::get<Finish>(actions.front()).outcome;
  EXPECT_EQ(outcome.exit_code, kExitUsage);
  EXPECT_EQ(outcome.sentence, "give every node the same --nnodes");
}

// ---- a node whose leader is elsewhere

class RemoteNodeTest : public NodeCoreTest {
 protected:
  RemoteNodeTest() { core = NodeCore{NodeConfig{2, 30s, 10s, /*hosts_leader=*/false}}; }

  rdzv::JobOutcome finish_after(const NodeEvent& event) {
    core.step(event);
    core.step(failed(0, ExitStatus::killed(SIGTERM)));
    core.step(failed(1, ExitStatus::killed(SIGTERM)));
    const auto actions = core.step(RoundClosed{kFirst});
    return std::get<Finish>(actions.at(0)).outcome;
  }
};

TEST_F(RemoteNodeTest, LeavesWithoutWaitingForTheJobsEnd) {
  run();
  const auto outcome = finish_after(StopSignal{SIGTERM});
  EXPECT_EQ(outcome.kind, rdzv::JobOutcome::Kind::kStopped);
  EXPECT_EQ(outcome.exit_code, 128 + SIGTERM);
  EXPECT_EQ(outcome.stop_signal, SIGTERM);
  EXPECT_EQ(outcome.consequences.size(), 2U);
}

TEST_F(RemoteNodeTest, LeavesAfterAPreemptionWithTheCodeThatAsksForARequeue) {
  run();
  EXPECT_EQ(finish_after(PreemptSignal{SIGUSR1}).exit_code, kExitPreempted);
}

TEST_F(RemoteNodeTest, APreemptedNodeNeedsTheLeaderNoMore) {
  run();
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_THAT(core.step(LeaderLost{"node0:29400 closed the connection"}),
              ElementsAre(NodeAction{TellLeader{rdzv::NodeLeaving{SIGUSR1, true}}}))
      << "preempted as well, and sooner done: the workers here still have their time";
  core.step(ended(0));
  core.step(ended(1));
  const auto actions = core.step(RoundClosed{kFirst});
  EXPECT_EQ(std::get<Finish>(actions.front()).outcome.exit_code, kExitPreempted);
}

// What `ddpctl stop` goes by.
TEST_F(RemoteNodeTest, KnowsWhetherItsWorkersHaveTheirOwnTimeAndWhetherItHasLeft) {
  run();
  EXPECT_FALSE(core.leaves_in_its_own_time());
  EXPECT_FALSE(core.has_left());
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_TRUE(core.leaves_in_its_own_time());
  EXPECT_FALSE(core.has_left()) << "the leader is told when the workers have ended, or the round";
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_TRUE(core.leaves_in_its_own_time());
  EXPECT_TRUE(core.has_left());
  core.step(StopSignal{SIGTERM});
  EXPECT_FALSE(core.leaves_in_its_own_time());
  EXPECT_TRUE(core.has_left());
}

TEST_F(RemoteNodeTest, LeavesAtOnceBetweenRounds) {
  const auto actions = core.step(StopSignal{SIGINT});
  EXPECT_EQ(actions.at(0), NodeAction{TellLeader{rdzv::NodeLeaving{SIGINT}}});
  EXPECT_EQ(std::get<Finish>(actions.at(1)).outcome.exit_code, 128 + SIGINT);
}

TEST_F(RemoteNodeTest, StopsItsWorkersAtOnceWhenTheLeaderIsLost) {
  run();
  const auto actions = core.step(LeaderLost{"node0:29400 is silent"});
  EXPECT_EQ(actions.front(), (NodeAction{SignalWorker{0, SIGTERM}}));
}

TEST_F(RemoteNodeTest, EndsWithACodeOfItsOwnWhenTheLeaderIsLost) {
  run();
  const auto outcome = finish_after(LeaderLost{"node0:29400 is silent"});
  EXPECT_EQ(outcome.exit_code, kExitLeaderLost);
  EXPECT_EQ(outcome.sentence, "node0:29400 is silent");
}

TEST_F(RemoteNodeTest, ALeaderThatIsLostWhileTheJobEndsDoesNotChangeItsOutcome) {
  run();
  rdzv::JobOutcome outcome;
  outcome.exit_code = 3;
  core.step(rdzv::JobEnd{outcome});
  EXPECT_EQ(finish_after(LeaderLost{"gone"}), outcome);
}

TEST_F(RemoteNodeTest, JoinsAnewWhenTheLeaderHasGoneOnWithoutIt) {
  run();
  EXPECT_EQ(core.step(rdzv::DeclaredLost{}).front(), (NodeAction{SignalWorker{0, SIGTERM}}));
  core.step(failed(0, ExitStatus::killed(SIGTERM)));
  core.step(failed(1, ExitStatus::killed(SIGTERM)));
  EXPECT_THAT(core.step(RoundClosed{kFirst}),
              ElementsAre(NodeAction{Join{rdzv::LastRound{kFirst, 1, 0}}}));
  EXPECT_THAT(core.step(start_of(kSecond)),
              ElementsAre(NodeAction{StartWorkers{start_of(kSecond)}}));
}

TEST_F(RemoteNodeTest, TellsALeaderThatWasStartedAgainWhatItKnows) {
  rdzv::RoundStart start = start_of(kSecond);
  start.node_count = 3;
  start.restarts = 1;
  core.step(start);
  EXPECT_EQ(core.step(LeaderReplaced{}).front(), (NodeAction{SignalWorker{0, SIGTERM}}));
  core.step(failed(0, ExitStatus::killed(SIGTERM), kSecond));
  core.step(failed(1, ExitStatus::killed(SIGTERM), kSecond));
  EXPECT_THAT(core.step(RoundClosed{kSecond}),
              ElementsAre(NodeAction{Join{rdzv::LastRound{kSecond, 3, 1}}}));
  core.step(rdzv::OpenStore{Round{2}});
  EXPECT_THAT(core.step(LeaderReplaced{}),
              ElementsAre(NodeAction{CloseStore{Round{2}}},
                          NodeAction{Join{rdzv::LastRound{kSecond, 3, 1}}}))
      << "a round that never began is none";
}

TEST_F(RemoteNodeTest, HasNothingToTellBeforeItsFirstRound) {
  EXPECT_THAT(core.step(LeaderReplaced{}), ElementsAre(NodeAction{Join{}}));
}

TEST_F(RemoteNodeTest, AStuckWorkerThatNobodyHearsOfEndsTheAgentWithItsCode) {
  run();
  core.step(LeaderLost{"gone"});
  core.step(TimerExpired{TimerId{1}});
  core.step(TimerExpired{TimerId{2}});
  EXPECT_THAT(core.step(TimerExpired{TimerId{3}}), ElementsAre(NodeAction{CloseRound{kFirst}}));
  const auto actions = core.step(RoundClosed{kFirst});
  EXPECT_EQ(std::get<Finish>(actions.front()).outcome.exit_code, kExitWorkerStuck);
}

// ---- replacement in place

TEST_F(NodeCoreTest, ToldThatAllCanRecoverItTellsTheLeaderOnce) {
  EXPECT_THAT(core.step(WorkersCanRecover{kFirst}), IsEmpty());
  run();
  EXPECT_THAT(core.step(WorkersCanRecover{kFirst}),
              ElementsAre(tells(rdzv::WorkersRecover{kFirst})));
  EXPECT_THAT(core.step(WorkersCanRecover{kFirst}), IsEmpty());
}

TEST_F(NodeCoreTest, AWorkerThatCanBeReplacedIsReportedAndNobodyIsToldThatTheGroupIsBroken) {
  run();
  const auto dead = replaceable(1, 41, 3);
  EXPECT_THAT(core.step(dead),
              ElementsAre(tells(rdzv::WorkerReplaceable{kFirst, *dead.failure, 41, 3})));
  EXPECT_THAT(core.step(replace(4, 1)), ElementsAre(replaces(4, 1, 1)));
  EXPECT_TRUE(core.is_running());
  EXPECT_THAT(core.step(ended(0)), ElementsAre(tells(rdzv::SomeWorkersDone{kFirst})));
  EXPECT_THAT(core.step(ended(1)), ElementsAre(tells(rdzv::WorkersDone{kFirst})))
      << "the one that took its place";
}

TEST_F(NodeCoreTest, TellsTheLeaderWhenTheLastOfItsWorkersHasRegrouped) {
  run();
  EXPECT_THAT(core.step(replace(1, 9)), ElementsAre(replaces(1, 9, std::nullopt)));
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 1}), IsEmpty());
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 1}), IsEmpty()) << "it says so twice";
  EXPECT_THAT(core.step(WorkerRegrouped{kSecond, 1, 1}), IsEmpty()) << "in another round";
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 1}),
              ElementsAre(tells(rdzv::Regrouped{kFirst, 1})));
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 1}), IsEmpty()) << "told already";
}

TEST_F(NodeCoreTest, AWorkerThatHasEndedWithZeroSinceItRegroupedCounts) {
  run();
  core.step(replace(1, 9));
  core.step(WorkerRegrouped{kFirst, 0, 1});
  EXPECT_THAT(core.step(ended(0)), ElementsAre(tells(rdzv::SomeWorkersDone{kFirst})));
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 1}),
              ElementsAre(tells(rdzv::Regrouped{kFirst, 1})));
}

// It has left its loop of steps, and the others would wait for it.
TEST_F(NodeCoreTest, TellsTheLeaderOfAWorkerThatWillNotRegroup) {
  run();
  core.step(replace(1, 9));
  core.step(WorkerRegrouped{kFirst, 0, 1});
  EXPECT_THAT(core.step(WorkerCannotRegroup{kFirst, 0}), IsEmpty()) << "it has before";
  EXPECT_THAT(core.step(WorkerCannotRegroup{kFirst, 1}),
              ElementsAre(tells(rdzv::CannotRegroup{kFirst, 1})));
  EXPECT_THAT(core.step(replace(2, 8)),
              ElementsAre(replaces(2, 8, std::nullopt), tells(rdzv::CannotRegroup{kFirst, 2})));
}

TEST_F(NodeCoreTest, ShowsWhoHasNotRegroupedWhenItIsLate) {
  run();
  core.step(replace(1, 9));
  EXPECT_THAT(core.step(RegroupIsLate{kFirst, 1}),
              ElementsAre(NodeAction{ShowLate{kFirst, {0, 1}}}));
  core.step(WorkerRegrouped{kFirst, 0, 1});
  EXPECT_THAT(core.step(RegroupIsLate{kFirst, 1}), ElementsAre(NodeAction{ShowLate{kFirst, {1}}}));
  core.step(replace(2, 8));
  EXPECT_THAT(core.step(RegroupIsLate{kFirst, 1}), IsEmpty()) << "a newer one has its own time";
  core.step(WorkerRegrouped{kFirst, 0, 2});
  core.step(WorkerRegrouped{kFirst, 1, 2});
  EXPECT_THAT(core.step(RegroupIsLate{kFirst, 2}), IsEmpty());
}

TEST_F(NodeCoreTest, WhoeverTakesThePlaceOfOneThatHadLeftItsLoopIsAwaited) {
  run();
  core.step(WorkerCannotRegroup{kFirst, 1});
  core.step(replaceable(1));
  EXPECT_THAT(core.step(replace(1, 1)), ElementsAre(replaces(1, 1, 1)));
}

TEST_F(NodeCoreTest, OnlyTheLastGenerationCounts) {
  run();
  core.step(replace(1, 9));
  core.step(WorkerRegrouped{kFirst, 0, 1});
  EXPECT_THAT(core.step(replace(2, 8)), ElementsAre(replaces(2, 8, std::nullopt)));
  EXPECT_THAT(core.step(replace(2, 8)), IsEmpty());
  EXPECT_THAT(core.step(replace(1, 7)), IsEmpty()) << "of the past";
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 1}), IsEmpty());
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 2}), IsEmpty());
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 2}),
              ElementsAre(tells(rdzv::Regrouped{kFirst, 2})));
}

TEST_F(NodeCoreTest, NothingHasRegroupedWhileOneIsDead) {
  run();
  core.step(replace(1, 9));
  core.step(WorkerRegrouped{kFirst, 0, 1});
  core.step(replaceable(0));
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 1}), IsEmpty());
  EXPECT_THAT(core.step(replace(2, 0)), ElementsAre(replaces(2, 0, 0)));
  core.step(WorkerRegrouped{kFirst, 1, 2});
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 2}),
              ElementsAre(tells(rdzv::Regrouped{kFirst, 2})));
}

TEST_F(NodeCoreTest, TwoThatDieTogetherAreReplacedOneAfterTheOther) {
  run();
  core.step(replaceable(0));
  core.step(replaceable(1));
  EXPECT_THAT(core.step(replace(1, 0)), ElementsAre(replaces(1, 0, 0)));
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 1}), IsEmpty());
  EXPECT_THAT(core.step(replace(2, 1)), ElementsAre(replaces(2, 1, 1)));
}

TEST_F(NodeCoreTest, WhoeverCouldNotBeReplacedAfterAllFails) {
  run();
  core.step(replaceable(1));
  core.step(replace(1, 1));
  const auto again = failed(1, ExitStatus::killed(SIGKILL));
  EXPECT_THAT(core.step(again), ElementsAre(NodeAction{TellGroupBroken{kFirst, 1}},
                                            tells(rdzv::WorkerFailed{kFirst, *again.failure})));
}

// The leader has decided before it hears of the second one, for which it stops the round.
TEST_F(NodeCoreTest, AfterAFailureNobodyIsReplaced) {
  run();
  core.step(replaceable(0));
  EXPECT_EQ(names_of(core.step(failed(1, ExitStatus::exited(1)))), "WorkerFailed");
  EXPECT_THAT(core.step(replace(1, 0)), IsEmpty());
  EXPECT_EQ(names_of(core.step(rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure})),
            "CloseRound");
}

TEST_F(NodeCoreTest, ARoundWithADeadWorkerIsNeverDone) {
  run();
  core.step(replaceable(1));
  EXPECT_THAT(core.step(ended(0)), ElementsAre(tells(rdzv::SomeWorkersDone{kFirst})));
}

TEST_F(NodeCoreTest, IfTheLeaderRefusesTheWorkersAreToldOnce) {
  run();
  core.step(replaceable(1));
  EXPECT_THAT(core.step(rdzv::GroupBroken{kFirst, 1}),
              ElementsAre(NodeAction{TellGroupBroken{kFirst, 1}}));
  EXPECT_EQ(names_of(core.step(rdzv::RoundStop{kFirst, rdzv::RoundStop::Why::kFailure})),
            "SIGTERM ArmTimer");
}

// Before the leader has decided, something else stops the workers.
TEST(NodeCore, TellsTheWorkersOfADeadOneBeforeTheyAreStopped) {
  const std::pair<NodeEvent, const char*> stops[] = {
      {rdzv::RoundStop{kFirst}, "TellGroupBroken SIGTERM ArmTimer"},
      {rdzv::JobEnd{}, "Goodbye TellGroupBroken SIGTERM ArmTimer"},
      {rdzv::DeclaredLost{}, "TellGroupBroken SIGTERM ArmTimer"},
      {LeaderReplaced{}, "TellGroupBroken SIGTERM ArmTimer"},
      {LeaderLost{"gone"}, "TellGroupBroken SIGTERM ArmTimer"},
      {StopSignal{SIGTERM}, "NodeLeaving TellGroupBroken SIGTERM ArmTimer"}};
  for (const auto& [stop, answer] : stops) {
    NodeCore core{NodeConfig{2, 30s, 10s}};
    core.step(start_of(kFirst));
    core.step(replaceable(1));
    EXPECT_EQ(names_of(core.step(stop)), answer) << "event " << stop.index();
    EXPECT_THAT(core.step(replace(1, 1)), IsEmpty()) << "too late, event " << stop.index();
  }
}

TEST_F(NodeCoreTest, APreemptedNodeTakesPartUntilTheLeaderIsTold) {
  run();
  core.step(replaceable(1));
  EXPECT_EQ(names_of(core.step(PreemptSignal{SIGUSR1})), "AskToLeave");
  EXPECT_THAT(core.step(replace(1, 1)),
              ElementsAre(replaces(1, 1, 1), NodeAction{AskToLeave{1, SIGUSR1}}));
  EXPECT_THAT(core.step(replace(2, 9)), ElementsAre(replaces(2, 9, std::nullopt)));
  core.step(WorkerRegrouped{kFirst, 0, 2});
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 1, 2}),
              ElementsAre(tells(rdzv::Regrouped{kFirst, 2})));
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_THAT(core.step(replace(3, 9)), IsEmpty());
  EXPECT_THAT(core.step(WorkerRegrouped{kFirst, 0, 3}), IsEmpty());
}

TEST_F(NodeCoreTest, APreemptedNodeTellsItsWorkersOfADeadOneThatIsNotReplacedAnyMore) {
  run();
  core.step(replaceable(1));
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_EQ(names_of(core.step(rdzv::RoundStop{kFirst})), "TellGroupBroken NodeLeaving");
}

// A leader that is started again learns the spent budget from the nodes.
TEST_F(NodeCoreTest, RemembersWhatAReplacementCost) {
  run();
  core.step(rdzv::RoundStop{kFirst});
  core.step(replace(1, 9));
  core.step(ended(0));
  core.step(ended(1));
  core.step(RoundClosed{kFirst});
  const auto actions = core.step(rdzv::DeclaredLost{});
  ASSERT_THAT(actions, ElementsAre(NodeAction{Join{rdzv::LastRound{kFirst, 1, 1}}}));
}

// ---- the table in the header: every event in every state

enum State { kWaiting, kRunning, kStopping, kEnding, kEnded, kStates };

struct Row {
  NodeEvent event;
  const char* with_leader[kStates];
  const char* without[kStates];  // null: the same
};

NodeCore in_state(State state, bool hosts_leader) {
  NodeCore core{NodeConfig{1, 30s, 10s, hosts_leader}};
  core.step(rdzv::OpenStore{kFirst});
  if (state == kWaiting) return core;
  if (state == kEnding || state == kEnded) {
    core.step(rdzv::JobEnd{});
    for (int step = 0; state == kEnded && !core.has_ended(); ++step) {
      core.step(StepTaken{static_cast<EndStep>(step)});
    }
    return core;
  }
  rdzv::RoundStart start = start_of(kFirst);
  core.step(start);
  if (state == kStopping) core.step(rdzv::RoundStop{kFirst});
  return core;
}

TEST(NodeCore, AnswersEveryEventInEveryStateAsItsTableSays) {
  constexpr const char* kStop = "SIGTERM ArmTimer";
  constexpr const char* kFinish = "Finish TakeStep ArmTimer";
  constexpr const char* kNextStep = "TakeStep ArmTimer";
  const Row table[] = {
      {LeaderFound{true}, {"Join", "", "", "", ""}, {}},
      {CannotRun{2, "no"}, {kFinish, "", "", "", ""}, {}},
      {rdzv::OpenStore{kSecond}, {"CloseStore OpenRoundStore", "", "", "", ""}, {}},
      {StoreResult{kFirst, 1, ""}, {"StoreOpened", "", "", "", ""}, {}},
      {StoreResult{kFirst, 0, "no port"}, {"StoreNotOpened", "", "", "", ""}, {}},
      {start_of(kFirst), {"StartWorkers", "", "", "", ""}, {}},
      {rdzv::RoundStop{kFirst}, {"RoundStopped", kStop, "", "", ""}, {}},
      {rdzv::JobEnd{},
       {"Goodbye Finish TakeStep ArmTimer", "Goodbye SIGTERM ArmTimer", "Goodbye", "", ""},
       {}},
      {LeaderLost{"gone"}, {kFinish, kStop, "", "", ""}, {}},
      {rdzv::DeclaredLost{}, {"CloseStore Join", kStop, "", "", ""}, {}},
      {LeaderReplaced{}, {"CloseStore Join", kStop, "", "", ""}, {}},
      {rdzv::Refused{"no"}, {kFinish, "", "", "", ""}, {}},
      {rdzv::Warning{"hm"}, {"Announce", "Announce", "Announce", "", ""}, {}},
      {rdzv::WaitForNodes{}, {"Announce", "Announce", "Announce", "", ""}, {}},
      {rdzv::WaitAsSpare{}, {"Announce", "Announce", "Announce", "", ""}, {}},
      {ended(0), {"", "WorkersDone", "CloseRound", "", ""}, {}},
      {failed(0, ExitStatus::exited(1)), {"", "WorkerFailed", "CloseRound", "", ""}, {}},
      {replaceable(0), {"", "WorkerReplaceable", "CloseRound", "", ""}, {}},
      {rdzv::GroupBroken{kFirst, 1}, {"", "TellGroupBroken", "TellGroupBroken", "", ""}, {}},
      {replace(1, 5), {"", "Replace", "", "", ""}, {}},
      {WorkersCanRecover{kFirst}, {"", "WorkersRecover", "", "", ""}, {}},
      {WorkerRegrouped{kFirst, 0, 1}, {"", "", "", "", ""}, {}},
      {WorkerCannotRegroup{kFirst, 0}, {"", "", "", "", ""}, {}},
      {WorkerHung{kFirst, 0}, {"", "SIGKILL ArmTimer", "", "", ""}, {}},
      {RegroupIsLate{kFirst, 1}, {"", "", "", "", ""}, {}},
      {WorkerStarted{kFirst, 0}, {"", "", "", "", ""}, {}},
      {StartIsLate{kFirst}, {"", "ShowStarting", "", "", ""}, {}},
      {StopSignal{SIGTERM},
       {"NodeLeaving", "NodeLeaving SIGTERM ArmTimer", "NodeLeaving", kNextStep, ""},
       {"NodeLeaving Finish TakeStep ArmTimer", "NodeLeaving SIGTERM ArmTimer", "NodeLeaving",
        kNextStep, ""}},
      {PreemptSignal{SIGUSR1},
       {"NodeLeaving", "AskToLeave", "NodeLeaving", kNextStep, ""},
       {"NodeLeaving Finish TakeStep ArmTimer", "AskToLeave", "NodeLeaving", kNextStep, ""}},
      {TimerExpired{TimerId{1}}, {"", "", "GraceOver TakeStacks ArmTimer", kNextStep, ""}, {}},
      {StacksTaken{kFirst}, {"", "", "", "", ""}, {}},
      {WorkersSeen{kFirst, {{}}}, {"", "", "", "", ""}, {}},
      {RoundClosed{kFirst}, {"", "", "", "", ""}, {}},
      {StepTaken{EndStep::kLogs}, {"", "", "", kNextStep, ""}, {}},
      {StepTaken{EndStep::kConsole}, {"", "", "", "", ""}, {}},
  };
  for (const Row& row : table) {
    for (int state = 0; state < kStates; ++state) {
      for (const bool hosts_leader : {true, false}) {
        const auto& answers =
            hosts_leader || row.without[0] == nullptr ? row.with_leader : row.without;
        NodeCore core = in_state(static_cast<State>(state), hosts_leader);
        EXPECT_EQ(names_of(core.step(row.event)), answers[state])
            << "event " << row.event.index() << " in state " << state
            << (hosts_leader ? " with the leader" : " without the leader");
      }
    }
  }
}

// ---- the table of the stages of Stopping. kLooking: Grace after a failure, while the workers are looked at

enum Stage { kAsked, kGrace, kLooking, kStacks, kKilled, kClosing, kClosed, kStages };

NodeCore in_stage(Stage stage) {
  using Why = rdzv::RoundStop::Why;
  NodeCore core{NodeConfig{1, 30s, 10s}};
  core.step(start_of(kFirst));
  if (stage == kAsked) {
    core.step(PreemptSignal{SIGUSR1});
  } else if (stage == kClosed) {
    core.step(StopSignal{SIGTERM});
  } else {
    core.step(rdzv::RoundStop{kFirst, stage == kLooking ? Why::kFailure : Why::kPlanned});
  }
  if (stage >= kClosing) core.step(ended(0));
  if (stage == kClosed) core.step(RoundClosed{kFirst});
  if (stage >= kLooking && stage <= kKilled) core.step(TimerExpired{TimerId{1}});
  if (stage == kKilled) core.step(StacksTaken{kFirst});
  return core;
}

TEST(NodeCore, AnswersEveryEventInEveryStageOfStoppingAsItsTableSays) {
  constexpr const char* kFinish = "Finish TakeStep ArmTimer";
  constexpr const char* kLeave = "NodeLeaving";
  const std::pair<NodeEvent, std::array<const char*, kStages>> table[] = {
      {rdzv::RoundStop{kFirst}, {kLeave, "", "", "", "", "", "RoundStopped"}},
      {rdzv::JobEnd{},
       {"Goodbye SIGTERM ArmTimer", "Goodbye", "Goodbye", "Goodbye", "Goodbye", "Goodbye",
        "Goodbye Finish TakeStep ArmTimer"}},
      {LeaderLost{"gone"}, {kLeave, "", "", "", "", "", kFinish}},
      {rdzv::DeclaredLost{}, {"SIGTERM ArmTimer NodeLeaving", "", "", "", "", "", "Join"}},
      {StopSignal{SIGTERM},
       {"NodeLeaving SIGTERM ArmTimer", kLeave, kLeave, kLeave, kLeave, kLeave, ""}},
      {PreemptSignal{SIGUSR1}, {"", kLeave, kLeave, kLeave, kLeave, kLeave, ""}},
      {TimerExpired{TimerId{1}}, {"", "GraceOver TakeStacks ArmTimer", "", "", "", "", ""}},
      {TimerExpired{TimerId{2}}, {"", "", "", "SIGKILL ArmTimer", "", "", ""}},
      {TimerExpired{TimerId{3}}, {"", "", "", "", "NodeStuck CloseRound", "", ""}},
      {WorkersSeen{kFirst, {{}}}, {"", "", "GraceOver SIGKILL ArmTimer", "", "", "", ""}},
      {StacksTaken{kFirst}, {"", "", "", "SIGKILL ArmTimer", "", "", ""}},
      {ended(0),
       {"NodeLeaving CloseRound", "CloseRound", "CloseRound", "CloseRound", "CloseRound", "", ""}},
      {RoundClosed{kFirst}, {"", "", "", "", "", "RoundStopped", ""}},
  };
  for (const auto& [event, answers] : table) {
    for (int stage = 0; stage < kStages; ++stage) {
      NodeCore core = in_stage(static_cast<Stage>(stage));
      EXPECT_EQ(names_of(core.step(event)), answers[static_cast<std::size_t>(stage)])
          << "event " << event.index() << " in stage " << stage;
    }
  }
  for (const Stage stage : {kGrace, kLooking, kStacks}) {
    NodeCore core = in_stage(stage);
    core.step(StopSignal{SIGTERM});
    EXPECT_EQ(names_of(core.step(StopSignal{SIGTERM})), "SIGKILL ArmTimer") << stage;
  }
}

// ---- the end of a job

class EndingTest : public ::testing::Test {
 protected:
  // The steps that are begun, with the limit of each.
  using Steps = std::vector<std::pair<EndStep, std::chrono::milliseconds>>;
  Steps begin(rdzv::JobOutcome::Kind kind) {
    rdzv::JobOutcome outcome;
    outcome.kind = kind;
    return steps_in(core.step(rdzv::JobEnd{outcome}));
  }
  static Steps steps_in(const std::vector<NodeAction>& actions) {
    Steps steps;
    for (const NodeAction& action : actions) {
      if (const auto* step = std::get_if<TakeStep>(&action)) steps.emplace_back(step->step, 0ms);
      if (const auto* timer = std::get_if<ArmTimer>(&action)) steps.back().second = timer->after;
    }
    return steps;
  }
  Steps all_of(rdzv::JobOutcome::Kind kind) {
    Steps steps = begin(kind);
    while (!core.has_ended()) {
      const Steps next = steps_in(core.step(StepTaken{steps.back().first}));
      steps.insert(steps.end(), next.begin(), next.end());
    }
    return steps;
  }

  NodeCore core{NodeConfig{.local_world_size = 1, .leader_leave_timeout = 7s}};
};

TEST_F(EndingTest, TakesEveryStepOnceAndWaitsForSlowReadersOfWhatWorkersWrote) {
  EXPECT_EQ(all_of(rdzv::JobOutcome::Kind::kFailed), (Steps{{EndStep::kLogs, 2s},
                                                            {EndStep::kFollowers, 2s},
                                                            {EndStep::kLeader, 7s},
                                                            {EndStep::kProgress, 2s},
                                                            {EndStep::kOutput, 24h},
                                                            {EndStep::kReport, 2500ms},
                                                            {EndStep::kEvents, 5s},
                                                            {EndStep::kConsole, 24h}}));
}

TEST_F(EndingTest, AJobThatWasStoppedDoesNotWaitForReaders) {
  const Steps steps = all_of(rdzv::JobOutcome::Kind::kStopped);
  EXPECT_EQ(steps.at(4), std::pair(EndStep::kOutput, 500ms + 0ms));
  EXPECT_EQ(steps.at(6), std::pair(EndStep::kEvents, 500ms + 0ms));
  EXPECT_EQ(steps.at(7), std::pair(EndStep::kConsole, 500ms + 0ms));
}

TEST_F(EndingTest, AStepThatIsNotTakenInTimeHoldsUpNothing) {
  begin(rdzv::JobOutcome::Kind::kSucceeded);
  for (std::uint32_t timer = 1; timer <= 7; ++timer) {
    EXPECT_EQ(steps_in(core.step(TimerExpired{TimerId{timer}})).size(), 1U);
  }
  EXPECT_THAT(core.step(TimerExpired{TimerId{8}}), ElementsAre(NodeAction{Exit{}}));
}

TEST_F(EndingTest, AStepThatIsTakenTooLateIsNotTakenForTheNextOne) {
  begin(rdzv::JobOutcome::Kind::kSucceeded);
  core.step(TimerExpired{TimerId{1}});
  EXPECT_THAT(core.step(StepTaken{EndStep::kLogs}), IsEmpty());
}

TEST_F(EndingTest, ASignalLeavesOutWhatOnlookersWantAndTheNextOneTheOutput) {
  begin(rdzv::JobOutcome::Kind::kSucceeded);
  EXPECT_EQ(steps_in(core.step(StopSignal{SIGINT})), (Steps{{EndStep::kLeader, 7s}}));
  EXPECT_EQ(steps_in(core.step(StepTaken{EndStep::kLeader})), (Steps{{EndStep::kOutput, 24h}}));
  EXPECT_EQ(steps_in(core.step(StopSignal{SIGINT})), (Steps{{EndStep::kReport, 500ms}}));
  for (int more = 0; more < 3; ++more) {
    EXPECT_THAT(core.step(StopSignal{SIGINT}), IsEmpty()) << "the report has its time";
  }
}

// A node that has not heard yet how the job ended would end with 111.
TEST_F(EndingTest, ASignalDoesNotEndTheLeaderBeforeOtherNodesKnowTheOutcomeButASecondOneDoes) {
  begin(rdzv::JobOutcome::Kind::kSucceeded);
  core.step(StepTaken{EndStep::kLogs});
  core.step(StepTaken{EndStep::kFollowers});
  EXPECT_THAT(core.step(StopSignal{SIGTERM}), IsEmpty());
  EXPECT_EQ(steps_in(core.step(StopSignal{SIGTERM})), (Steps{{EndStep::kOutput, 24h}}));
}

TEST_F(EndingTest, ASignalShortensTheTimeOfTheReport) {
  begin(rdzv::JobOutcome::Kind::kSucceeded);
  for (int step = 0; step < 7; ++step) core.step(StepTaken{static_cast<EndStep>(step)});
  EXPECT_THAT(core.step(StopSignal{SIGINT}), ElementsAre(NodeAction{ArmTimer{TimerId{9}, 500ms}}));
  EXPECT_THAT(core.step(TimerExpired{TimerId{8}}), IsEmpty());
  EXPECT_THAT(core.step(TimerExpired{TimerId{9}}), ElementsAre(NodeAction{Exit{}}));
}

TEST(NodeCore, ANodeThatDoesNotKnowYetWhereItsLeaderIsLeavesAtOnce) {
  NodeCore core{NodeConfig{.local_world_size = 1, .hosts_leader = false}};
  EXPECT_EQ(names_of(core.step(StopSignal{SIGINT})), "NodeLeaving Finish TakeStep ArmTimer");
  EXPECT_THAT(core.step(LeaderFound{true}), IsEmpty());
}

TEST(NodeCore, TheLeaderThatIsFoundHereIsAwaitedAtTheEnd) {
  NodeCore core{NodeConfig{.local_world_size = 1, .hosts_leader = false}};
  core.step(LeaderFound{true});
  EXPECT_EQ(names_of(core.step(StopSignal{SIGINT})), "NodeLeaving");
}

}  // namespace
}  // namespace ddprun::agent
