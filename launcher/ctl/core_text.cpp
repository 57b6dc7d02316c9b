#include "launcher/ctl/core_text.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include "agent/failure/failure_report.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/round/job_outcomes.h"

namespace ddprun::agent {
namespace {

using std::to_string;

std::string of_round(Round round) { return " of round " + to_string(round); }

std::string in_generation(std::uint32_t generation) {
  return " in generation " + to_string(generation);
}

std::string until(rdzv::HoldSteps::Until until) {
  using Until = rdzv::HoldSteps::Until;
  return until == Until::kLeaveAt     ? ", to leave"
         : until == Until::kRoundStop ? ", to stop"
                                      : ": they go on";
}

std::string local_ranks(const std::vector<int>& ranks) { return "local " + ranks_in_words(ranks); }

std::string ended_with_zero(const std::vector<int>& done) {
  return done.empty() ? "" : ", ended with 0 before: " + ranks_in_words(done);
}

std::string signal_or_notice(int signal) { return signal == 0 ? "a notice" : signal_name(signal); }
std::string asked_by(const std::string& by) { return by.empty() ? "" : ", asked for by " + by; }

// `begin` and the failures; nothing if there is none.
std::string each_of(const std::vector<rdzv::WorkerFailure>& failures, const std::string& begin) {
  std::string text;
  for (const rdzv::WorkerFailure& failure : failures) {
    text += (text.empty() ? begin : "; ") + describe(failure) +
            (failure.was_told_to_stop ? ", which was told to stop" : "");
  }
  return text;
}

// The texts of what has no more to tell than the round or the sentence that it holds, if any.
const char* text_of(const rdzv::SomeWorkersDone&) { return "SomeWorkersDone"; }
const char* text_of(const rdzv::NodeStuck&) { return "NodeStuck"; }
const char* text_of(const rdzv::Goodbye&) { return "Goodbye"; }
const char* text_of(const rdzv::WorkersRecover&) { return "WorkersRecover"; }
const char* text_of(const rdzv::LeaveWanted&) { return "LeaveWanted"; }
const char* text_of(const rdzv::StopWanted&) { return "StopWanted"; }
const char* text_of(const rdzv::Refused&) { return "Refused"; }
const char* text_of(const rdzv::Warning&) { return "Warning"; }
const char* text_of(const rdzv::OpenStore&) { return "OpenStore"; }
const char* text_of(const rdzv::DeclaredLost&) { return "DeclaredLost"; }
const char* text_of(const rdzv::NodeDisconnected&) { return "its connection broke"; }
const char* text_of(const rdzv::NodeResumed&) { return "it is connected again"; }
const char* text_of(const rdzv::NodeTurnedAway&) { return "it was turned away"; }
const char* text_of(const rdzv::NodeSilent&) { return "it was silent for too long"; }
const char* text_of(const StacksTaken&) { return "the stacks are taken"; }
const char* text_of(const RoundClosed&) { return "nothing is left"; }
const char* text_of(const LeaderLost&) { return "the leader is lost"; }
const char* text_of(const LeaderReplaced&) { return "another process leads now"; }
const char* text_of(const CannotRun&) { return "cannot run"; }
const char* text_of(const OpenRoundStore&) { return "open the store"; }
const char* text_of(const LookAtWorkers&) { return "look at the workers that still run"; }
const char* text_of(const TakeStacks&) { return "take the stacks of the workers"; }
const char* text_of(const CloseStore&) { return "close the store"; }
const char* text_of(const Exit&) { return "exit"; }

struct Words {
  template <typename What>
  std::string operator()(const What& what) const {
    std::string text = text_of(what);
    if constexpr (requires { what.round; }) text += of_round(what.round);
    if constexpr (requires { what.sentence; }) text += ": " + what.sentence;
    return text;
  }

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
  std::string operator()(const rdzv::WorkersDone& done) const {
    return "WorkersDone" + of_round(done.round) +
           (done.has_left ? ", because of a preemption" : "");
  }
  std::string operator()(const rdzv::RoundStopped& stopped) const {
    return "RoundStopped" + of_round(stopped.round) + each_of(stopped.failures, ", meanwhile ") +
           ended_with_zero(stopped.done);
  }
  std::string operator()(const rdzv::NodeLeaving& leaving) const {
    return "NodeLeaving by " + signal_or_notice(leaving.signal) +
           (leaving.is_preemption ? ", preempted" : "");
  }
  std::string operator()(const rdzv::StopAsked& asked) const {
    return "StopAsked, as by " + signal_name(asked.signal) + asked_by(asked.by);
  }
  std::string operator()(const rdzv::RestartAsked& asked) const {
    return "RestartAsked" + of_round(asked.round) + asked_by(asked.by);
  }
  std::string operator()(const rdzv::DrainAsked& asked) const {
    constexpr std::array kWhat{"DrainAsked of", "DrainAsked, at once, of", "Undrain of"};
    return std::string(kWhat[static_cast<std::size_t>(asked.what)]) + " " + asked.name.host +
           asked_by(asked.by);
  }
  std::string operator()(const rdzv::NodeFit&) const { return "NodeFit"; }
  std::string operator()(const rdzv::NodeUnfit& unfit) const {
    return "NodeUnfit: " + unfit.sentence;
  }
  std::string operator()(const rdzv::WorkerReplaceable& failed) const {
    return "WorkerReplaceable" + of_round(failed.round) + in_generation(failed.generation) + ", " +
           to_string(failed.committed) + " steps committed" +
           (failed.has_standby ? ": " : ", no standby: ") + describe(failed.failure);
  }
  std::string operator()(const rdzv::Regrouped& regrouped) const {
    return "Regrouped" + of_round(regrouped.round) + in_generation(regrouped.generation);
  }
  std::string operator()(const rdzv::CannotRegroup& refusal) const {
    return "CannotRegroup" + of_round(refusal.round) + in_generation(refusal.generation);
  }
  std::string operator()(const rdzv::StepsHeld& held) const {
    return "StepsHeld" + of_round(held.round) +
           (held.passed < 0 ? ", they go on" : ", boundary " + to_string(held.passed) + " passed");
  }

  // leader to agent
  std::string operator()(const rdzv::WaitForNodes& wait) const {
    return "WaitForNodes: " + describe(wait);
  }
  std::string operator()(const rdzv::WaitAsSpare& spare) const {
    if (spare.why == rdzv::WaitAsSpare::Why::kLeftOut) return "WaitAsSpare: " + spare.left_out;
    return spare.why == rdzv::WaitAsSpare::Why::kNoRoom ? "WaitAsSpare: no room"
                                                        : "WaitAsSpare: the job is finishing";
  }
  std::string operator()(const rdzv::RoundStart& start) const {
    std::string text =
        "RoundStart " + to_string(start.round) + ": node " + to_string(start.node_rank) + " of " +
        to_string(start.node_count) + ", world " + to_string(start.world_size) +
        ", its ranks from " + to_string(start.rank_offset) + ", store at " + start.master_addr +
        ":" + to_string(start.master_port) + ", restarts " + to_string(start.restarts) + " of " +
        to_string(start.max_restarts) + (start.after_arrival ? ", after an arrival" : "");
    const std::string change = describe_change(start, {});
    return change.empty() ? text : text + " (" + change + ")";
  }
  std::string operator()(const rdzv::RoundStop& stop) const {
    return "RoundStop" + of_round(stop.round) +
           (stop.why == rdzv::RoundStop::Why::kFailure ? ", after a failure or a loss" : "") +
           (stop.after_step ? ", after step " + to_string(*stop.after_step) : "") +
           (stop.gone ? ": " + describe(*stop.gone) : "");
  }
  std::string operator()(const rdzv::HoldSteps& hold) const {
    return "HoldSteps" + of_round(hold.round) + until(hold.until);
  }
  std::string operator()(const rdzv::GroupBroken& broken) const {
    return "GroupBroken" + of_round(broken.round) + ": rank " + to_string(broken.rank) + " is gone";
  }
  std::string operator()(const rdzv::ReplaceWorker& replace) const {
    return "ReplaceWorker" + of_round(replace.round) + in_generation(replace.generation) +
           ": rank " + to_string(replace.rank) + ", restarts " + to_string(replace.restarts) +
           " of " + to_string(replace.max_restarts);
  }
  std::string operator()(const rdzv::LeaveAt& leave) const {
    return "LeaveAt" + of_round(leave.round) + ": boundary " + to_string(leave.boundary);
  }
  std::string operator()(const rdzv::JobEnd& end) const { return "JobEnd: " + of(end.outcome); }

  // the agent's own
  std::string operator()(const StoreResult& result) const {
    return "the store" + of_round(result.round) +
           (result.error.empty() ? " is open at port " + to_string(result.port)
                                 : " is not open: " + result.error);
  }
  std::string operator()(const WorkerEnded& ended) const {
    const std::string who = "local rank " + to_string(ended.local_rank) + of_round(ended.round);
    if (!ended.failure)
      return who + " ended with 0" + (ended.has_left ? ", because of a preemption" : "");
    return who + (ended.replaceable ? " failed and can be replaced: " : " failed: ") +
           describe(*ended.failure);
  }
  std::string operator()(const WorkerStarted& started) const {
    return "local rank " + to_string(started.local_rank) + of_round(started.round) +
           " executes its program";
  }
  std::string operator()(const StartIsLate& late) const {
    return "the workers" + of_round(late.round) + " have had their time to start";
  }
  std::string operator()(const WorkersHeld& held) const {
    if (held.passed < 0) {
      return "the workers" + of_round(held.round) + " cannot be stopped between two steps";
    }
    return "the workers" + of_round(held.round) +
           " wait at their next step boundary, and have passed " + to_string(held.passed) +
           (held.step ? "; a step took " + to_string(held.step->count()) + " ms" : "");
  }
  std::string operator()(const WorkersParked& parked) const {
    return "the workers" + of_round(parked.round) + " wait after their step";
  }
  std::string operator()(const WorkerTold& told) const {
    return "local rank " + to_string(told.local_rank) + of_round(told.round) +
           " was told of a preemption";
  }
  std::string operator()(const WorkersCanRecover& can) const {
    return "all workers" + of_round(can.round) + " can recover";
  }
  std::string operator()(const WorkerRegrouped& regrouped) const {
    return "local rank " + to_string(regrouped.local_rank) + of_round(regrouped.round) +
           " has regrouped" + in_generation(regrouped.generation);
  }
  std::string operator()(const WorkerCannotRegroup& refusal) const {
    return "local rank " + to_string(refusal.local_rank) + of_round(refusal.round) +
           " has left its loop of steps";
  }
  std::string operator()(const RegroupIsLate& late) const {
    return "the workers" + of_round(late.round) + " have had their time to regroup" +
           in_generation(late.generation);
  }
  std::string operator()(const WorkerHung& hung) const {
    return "local rank " + to_string(hung.local_rank) + of_round(hung.round) +
           " hangs, and is to be killed";
  }
  std::string operator()(const WorkersSeen& seen) const {
    std::string text = "the workers" + of_round(seen.round) + " that still run were looked at:";
    for (std::size_t i = 0; i < seen.workers.size(); ++i) {
      const WorkerSeen& worker = seen.workers[i];
      text +=
          (i == 0 ? " local rank " : "; ") + to_string(i) +
          (worker.handles_stop ? " handles the signal, " : " does not handle the signal, ") +
          (!worker.has_record ? "has no record of its collectives"
           : worker.in_call ? "is in a collective for " + to_string(worker.in_call->count()) + " ms"
                            : "is in no collective") +
          (worker.has_gpu ? ", has a GPU open" : "") + (worker.leaves ? ", leaves" : "");
    }
    return text;
  }
  std::string operator()(const StopSignal& stop) const {
    return "stop signal " + signal_name(stop.signal);
  }
  std::string operator()(const PreemptSignal& preempt) const {
    return preempt.signal == 0 ? "preempt notice" : "preempt signal " + signal_name(preempt.signal);
  }
  std::string operator()(const TimerExpired& expired) const {
    return "time limit " + to_string(static_cast<std::uint32_t>(expired.timer)) + " is over";
  }
  std::string operator()(const LeaderFound& found) const {
    return found.is_hosted ? "the leader is here" : "the leader is found";
  }
  std::string operator()(const StepTaken& taken) const { return "done: " + of(taken.step); }

  // what the agent does
  std::string operator()(const StartWorkers& start) const {
    return "start the workers" + of_round(start.start.round);
  }
  std::string operator()(const SignalWorker& signal) const {
    return "send " + signal_name(signal.signal) + " to local rank " + to_string(signal.local_rank);
  }
  std::string operator()(const AskToLeave& ask) const {
    return "ask local rank " + to_string(ask.local_rank) + " to leave at its next step" +
           (ask.signal != 0 ? ", or send " + signal_name(ask.signal) : "");
  }
  std::string operator()(const HoldWorkers& hold) const {
    return "hold the workers at their next step boundary" + until(hold.until);
  }
  std::string operator()(const ParkWorkers& park) const {
    return "let the workers wait after step " + to_string(park.after_step);
  }
  std::string operator()(const LetWorkersLeave& let) const {
    return "let the workers leave at step boundary " + to_string(let.boundary);
  }
  std::string operator()(const TellGroupBroken& tell) const {
    return "tell the workers that rank " + to_string(tell.rank) + " is gone";
  }
  std::string operator()(const Replace& replace) const {
    return (replace.local_rank ? "replace local rank " + to_string(*replace.local_rank)
                               : "the others regroup for rank " + to_string(replace.rank)) +
           in_generation(replace.generation);
  }
  std::string operator()(const ShowLate& show) const {
    return "show the workers that have not regrouped: " + local_ranks(show.local_ranks);
  }
  std::string operator()(const ShowStarting& show) const {
    return "show the workers whose programs are not executed yet: " + local_ranks(show.local_ranks);
  }
  std::string operator()(const ArmTimer& arm) const {
    return "time limit " + to_string(static_cast<std::uint32_t>(arm.timer)) + ": " +
           to_string(arm.after.count()) + " ms";
  }
  std::string operator()(const GraceOver& over) const {
    return "the workers' " + to_string(over.grace.count()) + " ms " +
           (over.after_failure ? "after a failure are over" : "are over");
  }
  std::string operator()(const WaitForSaving& wait) const {
    return "wait for workers that may save something, at most " + to_string(wait.left.count()) +
           " ms: " + local_ranks(wait.local_ranks);
  }
  std::string operator()(const CloseRound& close) const {
    return "end what is left" + of_round(close.round) +
           (close.spares_orphans ? ", but no orphans" : "");
  }
  std::string operator()(const TellLeader& tell) const {
    return "tell the leader " + std::visit(*this, tell.message);
  }
  std::string operator()(const Join& join) const {
    if (!join.last_round) return "join";
    return "join anew, after round " + to_string(join.last_round->round) + " of " +
           to_string(join.last_round->node_count) + " nodes, restarts " +
           to_string(join.last_round->restarts);
  }
  std::string operator()(const Announce& announce) const {
    return "say " + std::visit(*this, announce.notice);
  }
  std::string operator()(const Finish& finish) const { return "finish: " + of(finish.outcome); }
  std::string operator()(const TakeStep& take) const { return of(take.step); }

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
    return kind_of(outcome) +
           (outcome.restarts > 0 ? ", restarts " + to_string(outcome.restarts) : "") +
           (outcome.in_place > 0 ? ", in place " + to_string(outcome.in_place) : "") +
           (outcome.lost_node ? ", " + name_of(*outcome.lost_node) + " was lost" : "") +
           each_of(outcome.consequences, ", then ") +
           (outcome.consequences_left_out > 0
                ? " and " + to_string(outcome.consequences_left_out) + " more"
                : "") +
           ended_with_zero(outcome.done) +
           (outcome.requests.empty() ? "" : ", requests: " + joined(outcome.requests, "; "));
  }

  static std::string kind_of(const rdzv::JobOutcome& outcome) {
    using Kind = rdzv::JobOutcome::Kind;
    const std::string code = ", exit code " + to_string(outcome.exit_code);
    if (outcome.kind == Kind::kSucceeded) return "success";
    if (outcome.kind == Kind::kFailed) {
      return "failure" + (outcome.cause ? ": " + describe(*outcome.cause) : "") +
             (outcome.sentence.empty() ? "" : " (" + outcome.sentence + ")") + code;
    }
    if (outcome.kind == Kind::kCannotRun) {
      return "cannot run: " + outcome.sentence +
             (outcome.cause ? " (" + describe(*outcome.cause) + ")" : "") + code;
    }
    const bool is_by_notice = outcome.stop_signal == 0 && outcome.exit_code == kExitPreempted;
    if (is_by_notice) return "stopped by " + rdzv::what_stopped(outcome) + code;
    return "stopped by " + signal_name(outcome.stop_signal) + asked_by(outcome.sentence) + code;
  }
};

struct HangWords {
  static std::string ranks_of(const std::vector<std::vector<int>>& lists) {
    std::vector<int> all;
    for (const auto& ranks : lists) all.insert(all.end(), ranks.begin(), ranks.end());
    return ranks_in_words(all);
  }
  static std::string of_case(hang_response::CaseId id) {
    return "case " + std::to_string(static_cast<std::uint64_t>(id)) + ": ";
  }

  std::string operator()(const hang_response::Found& found) const {
    return of_case(found.id) + "hung: " + ranks_in_words(found.hung.ranks);
  }
  std::string operator()(const hang_response::Waits& waits) const {
    return of_case(waits.id) + "others wait for " + ranks_in_words(waits.wait.missing);
  }
  std::string operator()(const hang_response::StacksTaken& taken) const {
    return of_case(taken.id) + "the stacks are taken";
  }
  std::string operator()(const hang_response::Reported& reported) const {
    return of_case(reported.id) + "the report is made";
  }
  std::string operator()(const hang_response::Confirmed& confirmed) const {
    return of_case(confirmed.id) + (!confirmed.is_so   ? "a rank is held"
                                    : *confirmed.is_so ? "it is still so"
                                                       : "they went on");
  }
  std::string operator()(const hang_response::EndAnswered& answered) const {
    return of_case(answered.id) + "nodes have answered for " +
           (answered.known.empty() ? "no rank" : ranks_in_words(answered.known));
  }
  std::string operator()(const hang_response::TimerExpired& expired) const {
    return of_case(expired.id) + "its time limit is over";
  }
  std::string operator()(const hang_response::RoundOver&) const { return "the round is over"; }

  std::string operator()(const hang_response::TakeStacks& take) const {
    return of_case(take.id) + "take the stacks of " +
           (take.ranks.empty() ? "all others" : ranks_in_words(take.ranks));
  }
  std::string operator()(const hang_response::Report& report) const {
    return of_case(report.id) + "report";
  }
  std::string operator()(const hang_response::ReportWait& report) const {
    return of_case(report.id) + "tell of the wait";
  }
  std::string operator()(const hang_response::Confirm& confirm) const {
    return of_case(confirm.id) + "ask whether it is still so";
  }
  std::string operator()(const hang_response::End& end) const {
    return of_case(end.id) + "kill " + ranks_of(end.ranks);
  }
  std::string operator()(const hang_response::Warn& warn) const { return "say " + warn.sentence; }
  std::string operator()(const hang_response::ArmTimer& arm) const {
    return of_case(arm.id) + "time limit: " + std::to_string(arm.after.count()) + " ms";
  }
  std::string operator()(const hang_response::Forget& forget) const {
    return of_case(forget.id) + "is over";
  }
};

}  // namespace

std::string state_of(const NodeCore& core) {
  const std::string round = " (round " + to_string(core.round()) + ")";
  if (core.is_running()) return "running" + round;
  if (core.is_stopping()) return "stopping" + round;
  if (core.is_waiting()) return "waiting";
  return core.has_ended() ? "ended" : "ending";
}

std::string state_of(const rdzv::LeaderView& view) {
  constexpr const char* kNames[] = {"gathering", "pausing",  "opening",
                                    "running",   "stopping", "ended"};
  return std::string(kNames[static_cast<std::size_t>(view.state)]) + " (round " +
         to_string(view.round) + ")";
}

std::string in_words(const hang_response::Event& event) { return std::visit(HangWords{}, event); }
std::string in_words(const hang_response::Action& action) {
  return std::visit(HangWords{}, action);
}

std::string in_words(const rdzv::ToLeader& message) { return std::visit(Words{}, message); }
std::string in_words(const rdzv::ToAgent& message) { return std::visit(Words{}, message); }
std::string in_words(const NodeEvent& event) { return std::visit(Words{}, event); }
std::string in_words(const NodeAction& action) { return std::visit(Words{}, action); }

std::string in_words(const rdzv::RoundInput& input) {
  if (const auto* event = std::get_if<rdzv::LinkEvent>(&input.what)) {
    const auto* away = std::get_if<rdzv::NodeTurnedAway>(event);
    if (away != nullptr) return name_of(*away) + " was turned away: " + away->why;
  }
  const std::string node = "node " + to_string(number(input.node)) + ": ";
  if (const auto* message = std::get_if<rdzv::ToLeader>(&input.what)) {
    return node + in_words(*message);
  }
  if (const auto* event = std::get_if<rdzv::LinkEvent>(&input.what)) {
    return node + std::visit(Words{}, *event);
  }
  return "the timer has fired";
}

std::string in_words(const rdzv::RankCalls& rank) {
  constexpr const char* kHeld[] = {"", "stopped by a signal, ", "in a debugger, ",
                                   "inside of the kernel, ", "frozen, "};
  std::string text =
      "rank " + to_string(rank.rank) + ": " + kHeld[static_cast<std::size_t>(rank.state)];
  if (rank.groups.empty()) return text + "no record";
  bool is_first = true;
  for (const GroupCalls& group : rank.groups) {
    text += std::exchange(is_first, false) ? "" : "; ";
    if (!group.at) {
      text += "no call of " + group.name;
      continue;
    }
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.3f s",
                  std::chrono::duration<double>(group.at->since).count());
    text += (group.at->is_over ? "left " : "in ") + std::string(name_of(group.at->call.operation)) +
            " (call " + to_string(group.at->number) + " of " + group.name + ")" +
            (group.at->is_over ? " " : " for ") + seconds + (group.at->is_over ? " before" : "");
  }
  return text;
}

std::string in_words(const rdzv::ToNode& message) {
  return "tell node " + to_string(number(message.to)) + " " + in_words(message.message);
}

}  // namespace ddprun::agent
