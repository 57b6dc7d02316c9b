#include "launcher/ctl/core_text.h"

#include "agent/failure/failure_report.h"

namespace ddprun::agent {
namespace {

using std::to_string;

std::string of_round(Round round) { return " of round " + to_string(round); }

struct Words {
  // agent to leader
  std::string operator()(const rdzv::NodeHello& hello) const {
    return "NodeHello: " + hello.host + ", " + to_string(hello.local_world_size) + " workers" +
           (hello.node_rank ? ", asks for rank " + to_string(*hello.node_rank) : "") +
           (hello.last_round ? ", was in round " + to_string(hello.last_round->round) : "");
  }
  std::string operator()(const rdzv::StoreOpened& opened) const {
    return "StoreOpened" + of_round(opened.round) + " at port " + to_string(opened.port);
  }
  std::string operator()(const rdzv::StoreNotOpened& refused) const {
    return "StoreNotOpened" + of_round(refused.round) + ": " + refused.why;
  }
  std::string operator()(const rdzv::WorkerFailed& failed) const {
    return "WorkerFailed" + of_round(failed.round) + ": " + describe(failed.failure);
  }
  std::string operator()(const rdzv::SomeWorkersDone& done) const {
    return "SomeWorkersDone" + of_round(done.round);
  }
  std::string operator()(const rdzv::WorkersDone& done) const {
    return "WorkersDone" + of_round(done.round);
  }
  std::string operator()(const rdzv::RoundStopped& stopped) const {
    return "RoundStopped" + of_round(stopped.round) + ", " + to_string(stopped.failures.size()) +
           " failures meanwhile";
  }
  std::string operator()(const rdzv::NodeLeaving& leaving) const {
    return "NodeLeaving by " + signal_name(leaving.signal) +
           (leaving.is_preemption ? ", preempted" : "");
  }
  std::string operator()(const rdzv::NodeStuck& stuck) const {
    return "NodeStuck: " + stuck.sentence;
  }
  std::string operator()(const rdzv::Goodbye&) const { return "Goodbye"; }
  std::string operator()(const rdzv::RestartAsked& asked) const {
    return "RestartAsked" + of_round(asked.round);
  }
  std::string operator()(const rdzv::StopAsked& asked) const {
    return "StopAsked, as by " + signal_name(asked.signal);
  }

  // leader to agent
  std::string operator()(const rdzv::Refused& refused) const {
    return "Refused: " + refused.sentence;
  }
  std::string operator()(const rdzv::Warning& warning) const {
    return "Warning: " + warning.sentence;
  }
  std::string operator()(const rdzv::WaitForNodes& wait) const {
    return "WaitForNodes: " + to_string(wait.present) + " of " + to_string(wait.min_nodes) +
           " to " + to_string(wait.max_nodes) + ", " + to_string(wait.left.count()) + " s left";
  }
  std::string operator()(const rdzv::WaitAsSpare& spare) const {
    return spare.why == rdzv::WaitAsSpare::Why::kNoRoom ? "WaitAsSpare: no room"
                                                        : "WaitAsSpare: the job is finishing";
  }
  std::string operator()(const rdzv::OpenStore& open) const {
    return "OpenStore" + of_round(open.round);
  }
  std::string operator()(const rdzv::RoundStart& start) const {
    std::string text = "RoundStart " + to_string(start.round) + ": node " +
                       to_string(start.node_rank) + " of " + to_string(start.node_count) +
                       ", world " + to_string(start.world_size) + ", restarts " +
                       to_string(start.restarts) + " of " + to_string(start.max_restarts);
    const std::string change = describe_change(start, {});
    return change.empty() ? text : text + " (" + change + ")";
  }
  std::string operator()(const rdzv::RoundStop& stop) const {
    return "RoundStop" + of_round(stop.round) +
           (stop.why == rdzv::RoundStop::Why::kFailure ? ", after a failure or a loss" : "");
  }
  std::string operator()(const rdzv::DeclaredLost&) const { return "DeclaredLost"; }
  std::string operator()(const rdzv::JobEnd& end) const { return "JobEnd: " + of(end.outcome); }

  // about connections, and time
  std::string operator()(const rdzv::NodeDisconnected&) const { return "its connection broke"; }
  std::string operator()(const rdzv::NodeResumed&) const { return "it is connected again"; }
  std::string operator()(const rdzv::NodeSilent&) const { return "it was silent for too long"; }

  // the agent's own
  std::string operator()(const StoreResult& result) const {
    return "the store" + of_round(result.round) +
           (result.error.empty() ? " is open at port " + to_string(result.port)
                                 : " is not open: " + result.error);
  }
  std::string operator()(const WorkerEnded& ended) const {
    const std::string who = "local rank " + to_string(ended.local_rank) + of_round(ended.round);
    return who + (ended.failure ? " failed: " + describe(*ended.failure) : " ended with 0");
  }
  std::string operator()(const StopSignal& stop) const {
    return "stop signal " + signal_name(stop.signal);
  }
  std::string operator()(const PreemptSignal& preempt) const {
    return "preempt signal " + signal_name(preempt.signal);
  }
  std::string operator()(const TimerExpired& expired) const {
    return "time limit " + to_string(static_cast<std::uint32_t>(expired.timer)) + " is over";
  }
  std::string operator()(const StacksTaken& taken) const {
    return "the stacks are taken" + of_round(taken.round);
  }
  std::string operator()(const RoundClosed& closed) const {
    return "nothing is left" + of_round(closed.round);
  }
  std::string operator()(const LeaderLost& lost) const {
    return "the leader is lost: " + lost.sentence;
  }
  std::string operator()(const LeaderReplaced&) const { return "another process leads now"; }
  std::string operator()(const LeaderFound& found) const {
    return found.is_hosted ? "the leader is here" : "the leader is found";
  }
  std::string operator()(const CannotRun& cannot) const { return "cannot run: " + cannot.sentence; }
  std::string operator()(const StepTaken& taken) const { return "done: " + of(taken.step); }

  // what the agent does
  std::string operator()(const OpenRoundStore& open) const {
    return "open the store" + of_round(open.round);
  }
  std::string operator()(const StartWorkers& start) const {
    return "start the workers" + of_round(start.start.round);
  }
  std::string operator()(const SignalWorker& signal) const {
    return "send " + signal_name(signal.signal) + " to local rank " + to_string(signal.local_rank);
  }
  std::string operator()(const AskToLeave& ask) const {
    return "ask local rank " + to_string(ask.local_rank) + " to leave at its next step";
  }
  std::string operator()(const ArmTimer& arm) const {
    return "time limit " + to_string(static_cast<std::uint32_t>(arm.timer)) + ": " +
           to_string(arm.after.count()) + " ms";
  }
  std::string operator()(const GraceOver& over) const {
    return "the workers' " + to_string(over.grace.count()) + " ms " +
           (over.after_failure ? "after a failure are over" : "are over");
  }
  std::string operator()(const TakeStacks& take) const {
    return "take the stacks of the workers" + of_round(take.round);
  }
  std::string operator()(const CloseRound& close) const {
    return "end what is left" + of_round(close.round);
  }
  std::string operator()(const CloseStore& close) const {
    return "close the store" + of_round(close.round);
  }
  std::string operator()(const TellLeader& tell) const {
    return "tell the leader " + std::visit(*this, tell.message);
  }
  std::string operator()(const Join& join) const { return join.last_round ? "join anew" : "join"; }
  std::string operator()(const Announce& announce) const {
    return "say " + std::visit(*this, announce.notice);
  }
  std::string operator()(const Finish& finish) const { return "finish: " + of(finish.outcome); }
  std::string operator()(const TakeStep& take) const { return of(take.step); }
  std::string operator()(const Exit&) const { return "exit"; }

  static std::string of(EndStep step) {
    constexpr const char* kSteps[] = {"let logs be complete for those who follow them",
                                      "tell those who follow logs the last of them",
                                      "take leave of the leader",
                                      "report the last progress",
                                      "deliver what the workers wrote",
                                      "say how it ended",
                                      "write the last events",
                                      "write what was said"};
    return kSteps[static_cast<std::size_t>(step)];
  }

  static std::string of(const rdzv::JobOutcome& outcome) {
    using Kind = rdzv::JobOutcome::Kind;
    const std::string code = ", exit code " + to_string(outcome.exit_code);
    if (outcome.kind == Kind::kSucceeded) return "success";
    if (outcome.kind == Kind::kFailed) {
      return "failure" + (outcome.cause ? ": " + describe(*outcome.cause) : "") + code;
    }
    return (outcome.kind == Kind::kStopped ? "stopped by " + signal_name(outcome.stop_signal)
                                           : "cannot run: " + outcome.sentence) +
           code;
  }
};

}  // namespace

std::string in_words(const rdzv::ToLeader& message) { return std::visit(Words{}, message); }
std::string in_words(const rdzv::ToAgent& message) { return std::visit(Words{}, message); }
std::string in_words(const NodeEvent& event) { return std::visit(Words{}, event); }
std::string in_words(const NodeAction& action) { return std::visit(Words{}, action); }

std::string in_words(const rdzv::RoundInput& input) {
  const std::string node = "node " + to_string(number(input.node)) + ": ";
  if (const auto* message = std::get_if<rdzv::ToLeader>(&input.what)) {
    return node + in_words(*message);
  }
  if (const auto* event = std::get_if<rdzv::LinkEvent>(&input.what)) {
    return node + std::visit(Words{}, *event);
  }
  return "the timer has fired";
}

std::string in_words(const rdzv::ToNode& message) {
  return "tell node " + to_string(number(message.to)) + " " + in_words(message.message);
}

}  // namespace ddprun::agent
