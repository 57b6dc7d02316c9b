// What holds for many events: the table of the NodeCore, limits and queries. tests/scenarios/node tells its stories.
#include "agent/core/node_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <csignal>
#include <utility>
#include <vector>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
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

WorkerEnded ended(int local_rank) { return {kFirst, local_rank, {}}; }
WorkerEnded failed(int local_rank, ExitStatus status) {
  return {kFirst, local_rank, failure(local_rank, status)};
}

WorkerEnded replaceable(int local_rank) {
  WorkerEnded ended = failed(local_rank, ExitStatus::killed(SIGKILL));
  ended.replaceable = Replaceable{7, 0};
  return ended;
}
rdzv::ReplaceWorker replace(std::uint32_t generation, int rank) {
  return {kFirst, generation, rank, failure(rank, ExitStatus::killed(SIGKILL)), 1, 3};
}

rdzv::RoundStart start_of(Round round) {
  rdzv::RoundStart start;
  start.round = round;
  start.world_size = 2;
  return start;
}

std::string names_of(const std::vector<NodeAction>& actions) {
  constexpr const char* kNames[] = {
      "OpenRoundStore", "StartWorkers", "SignalWorker",    "AskToLeave",    "TellGroupBroken",
      "ArmTimer",       "GraceOver",    "TakeStacks",      "CloseRound",    "CloseStore",
      "TellLeader",     "Join",         "Announce",        "Finish",        "TakeStep",
      "Exit",           "Replace",      "ShowLate",        "LookAtWorkers", "WaitForSaving",
      "ShowStarting",   "HoldWorkers",  "LetWorkersLeave", "ParkWorkers"};
  static_assert(std::size(kNames) == std::variant_size_v<NodeAction>);
  constexpr const char* kTold[] = {
      "NodeHello",     "StoreOpened",  "StoreNotOpened", "WorkerFailed",      "SomeWorkersDone",
      "WorkersDone",   "RoundStopped", "NodeLeaving",    "NodeStuck",         "Goodbye",
      "RestartAsked",  "StopAsked",    "WorkersRecover", "WorkerReplaceable", "Regrouped",
      "CannotRegroup", "LeaveWanted",  "StepsHeld",      "StopWanted",        "DrainAsked",
      "NodeUnfit",     "NodeFit"};
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

  void run() {
    core.step(rdzv::OpenStore{kFirst});
    core.step(rdzv::RoundStart{start_of(kFirst)});
  }
};

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
      {StopSignal{SIGINT}, 30s}};
  for (const auto& [stop, grace] : stops) {
    NodeCore core{NodeConfig{1, 30s, 10s, true, 2s}};
    core.step(start_of(kFirst));
    EXPECT_THAT(core.step(stop), Contains(NodeAction{ArmTimer{TimerId{1}, grace}}))
        << "event " << stop.index();
  }
}

// ---- after a failure

const WorkerSeen kSaves{.handles_stop = true, .has_record = true};
const WorkerSeen kWithGpu{.handles_stop = true, .has_gpu = true};

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

// What `ddpctl stop` goes by.
TEST_F(NodeCoreTest, KnowsWhetherItsWorkersHaveTheirOwnTimeAndWhetherItHasLeft) {
  core = NodeCore{NodeConfig{2, 30s, 10s, /*hosts_leader=*/false}};
  run();
  EXPECT_FALSE(core.leaves_in_its_own_time());
  EXPECT_FALSE(core.has_left());
  core.step(PreemptSignal{SIGUSR1});
  EXPECT_FALSE(core.leaves_in_its_own_time()) << "they may be programs that do not react";
  core.step(WorkerTold{kFirst, 1});
  EXPECT_TRUE(core.leaves_in_its_own_time());
  EXPECT_FALSE(core.has_left()) << "the leader is told when the workers have ended, or the round";
  core.step(rdzv::RoundStop{kFirst});
  EXPECT_TRUE(core.leaves_in_its_own_time());
  EXPECT_TRUE(core.has_left());
  core.step(StopSignal{SIGTERM});
  EXPECT_FALSE(core.leaves_in_its_own_time());
  EXPECT_TRUE(core.has_left());
}

// Before the leader has decided, something else stops the workers.
TEST(NodeCore, TellsTheWorkersOfADeadOneBeforeTheyAreStopped) {
  const std::pair<NodeEvent, const char*> stops[] = {
      {rdzv::RoundStop{kFirst}, "TellGroupBroken SIGTERM ArmTimer"},
      {rdzv::JobEnd{}, "Goodbye TellGroupBroken SIGTERM ArmTimer"},
      {rdzv::DeclaredLost{}, "TellGroupBroken SIGTERM ArmTimer"},
      {LeaderReplaced{}, "TellGroupBroken SIGTERM ArmTimer"},
      {LeaderLost{"gone"}, "TellGroupBroken SIGTERM ArmTimer"},
      {StopSignal{SIGINT}, "NodeLeaving TellGroupBroken SIGINT ArmTimer"}};
  for (const auto& [stop, answer] : stops) {
    NodeCore core{NodeConfig{2, 30s, 10s}};
    core.step(start_of(kFirst));
    core.step(replaceable(1));
    EXPECT_EQ(names_of(core.step(stop)), answer) << "event " << stop.index();
    EXPECT_THAT(core.step(replace(1, 1)), IsEmpty()) << "too late, event " << stop.index();
  }
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
       {"NodeLeaving", "HoldWorkers", "NodeLeaving", kNextStep, ""},
       {"NodeLeaving Finish TakeStep ArmTimer", "HoldWorkers", "NodeLeaving", kNextStep, ""}},
      {StopSignal{SIGINT},
       {"NodeLeaving", "NodeLeaving SIGINT ArmTimer", "NodeLeaving", kNextStep, ""},
       {"NodeLeaving Finish TakeStep ArmTimer", "NodeLeaving SIGINT ArmTimer", "NodeLeaving",
        kNextStep, ""}},
      {PreemptSignal{SIGUSR1},
       {"NodeLeaving", "AskToLeave LeaveWanted", "NodeLeaving", kNextStep, ""},
       {"NodeLeaving Finish TakeStep ArmTimer", "AskToLeave LeaveWanted", "NodeLeaving", kNextStep,
        ""}},
      {rdzv::HoldSteps{kFirst}, {"", "HoldWorkers", "", "", ""}, {}},
      {rdzv::LeaveAt{kFirst, 7}, {"", "LetWorkersLeave", "", "", ""}, {}},
      {WorkersHeld{kFirst, 6}, {"", "StepsHeld", "", "", ""}, {}},
      {WorkersParked{kFirst}, {"", "", "", "", ""}, {}},
      {WorkerTold{kFirst, 0}, {"", "", "", "", ""}, {}},
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

enum Stage { kAsked, kParking, kGrace, kLooking, kStacks, kKilled, kClosing, kClosed, kStages };

NodeCore in_stage(Stage stage) {
  using Why = rdzv::RoundStop::Why;
  NodeCore core{NodeConfig{1, 30s, 10s}};
  core.step(start_of(kFirst));
  if (stage == kAsked) {
    core.step(PreemptSignal{SIGUSR1});
    core.step(WorkerTold{kFirst, 0});
    core.step(rdzv::RoundStop{kFirst});
  } else if (stage == kClosed) {
    core.step(StopSignal{SIGINT});
  } else if (stage == kParking) {
    core.step(rdzv::RoundStop{.round = kFirst, .after_step = 7});
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
  constexpr const char* kStop = "SIGTERM ArmTimer";
  const std::pair<NodeEvent, std::array<const char*, kStages>> table[] = {
      {rdzv::RoundStop{kFirst}, {"", kStop, "", "", "", "", "", "RoundStopped"}},
      {rdzv::JobEnd{},
       {"Goodbye SIGTERM ArmTimer", "Goodbye SIGTERM ArmTimer", "Goodbye", "Goodbye", "Goodbye",
        "Goodbye", "Goodbye", "Goodbye Finish TakeStep ArmTimer"}},
      {LeaderLost{"gone"}, {"", kStop, "", "", "", "", "", kFinish}},
      {rdzv::DeclaredLost{}, {"", kStop, "", "", "", "", "", "Join"}},
      {StopSignal{SIGTERM},
       {"NodeLeaving SIGTERM ArmTimer", kLeave, kLeave, kLeave, kLeave, kLeave, kLeave, ""}},
      {PreemptSignal{SIGUSR1}, {"", kLeave, kLeave, kLeave, kLeave, kLeave, kLeave, ""}},
      {TimerExpired{TimerId{1}}, {"", kStop, "GraceOver TakeStacks ArmTimer", "", "", "", "", ""}},
      {TimerExpired{TimerId{2}}, {"", "", "", "", "SIGKILL ArmTimer", "", "", ""}},
      {TimerExpired{TimerId{3}}, {"", "", "", "", "", "NodeStuck CloseRound", "", ""}},
      {WorkersSeen{kFirst, {{}}}, {"", "", "", "GraceOver SIGKILL ArmTimer", "", "", "", ""}},
      {WorkersParked{kFirst}, {"", kStop, "", "", "", "", "", ""}},
      {StacksTaken{kFirst}, {"", "", "", "", "SIGKILL ArmTimer", "", "", ""}},
      {ended(0),
       {"CloseRound", "CloseRound", "CloseRound", "CloseRound", "CloseRound", "CloseRound", "",
        ""}},
      {RoundClosed{kFirst}, {"", "", "", "", "", "", "RoundStopped", ""}},
  };
  for (const auto& [event, answers] : table) {
    for (int stage = 0; stage < kStages; ++stage) {
      NodeCore core = in_stage(static_cast<Stage>(stage));
      EXPECT_EQ(names_of(core.step(event)), answers[static_cast<std::size_t>(stage)])
          << "event " << event.index() << " in stage " << stage;
    }
  }
  for (const Stage stage : {kParking, kGrace, kLooking, kStacks}) {
    NodeCore core = in_stage(stage);
    core.step(StopSignal{SIGTERM});
    EXPECT_EQ(names_of(core.step(StopSignal{SIGTERM})), "SIGKILL ArmTimer") << stage;
  }
}

}  // namespace
}  // namespace ddprun::agent
