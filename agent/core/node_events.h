// The input and the output of the NodeCore, as values. Events are reported by the Supervisor, which also performs the
// actions, in their order.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// ---- events (every message of rdzv::ToAgent is one too)

struct StoreResult {  // the answer to the OpenRoundStore action
  Round round{};
  std::uint16_t port = 0;
  std::string error;  // a sentence; empty: the store is open
};
struct Replaceable {  // what its page says, as in rdzv::WorkerReplaceable
  std::int64_t committed = 0;
  std::uint32_t generation = 0;
  bool has_standby = true;
};
struct WorkerEnded {
  Round round{};
  int local_rank = 0;
  std::optional<rdzv::WorkerFailure> failure;  // none: exit code 0
  // With a failure: a prepared standby of its rank waits, or it had taken the place of an earlier worker itself.
  std::optional<Replaceable> replaceable = {};
  // It was told to leave, and has not simply come to its end: should_leave() was true for it, or the signal of a
  // preemption was sent to it.
  bool has_left = false;
};
// Its program is executed. If that fails, WorkerEnded comes instead.
struct WorkerStarted {
  Round round{};
  int local_rank = 0;
};
// Some time after the StartWorkers action, and again after each ShowStarting.
struct StartIsLate {
  Round round{};
};
// This worker is to be killed: the verdict is that it hangs (--on-hang), or it has reported a NaN (--on-nan).
struct WorkerHung {
  Round round{};
  int local_rank = 0;
};
struct StopSignal {
  int signal = 0;
};
struct
    PreemptSignal {  // the scheduler, or the provider of the machine, will soon take the node back
  int signal = 0;    // 0: a notice has come (--preempt-notice), and no signal
};
// Some time after the Replace action. Large models take long, too: nothing is decided.
struct RegroupIsLate {
  Round round{};
  std::uint32_t generation = 0;
};

struct WorkersHeld {  // the answer to the HoldWorkers action, which comes at once
  Round round{};
  std::int64_t passed = 0;  // as in rdzv::StepsHeld
  // If they are to be stopped: the longest of their last steps; none: not known.
  std::optional<std::chrono::milliseconds> step = {};
  rdzv::HoldSteps::Until until{};  // as in the action
};
// The answer to the ParkWorkers action: all that live wait after that step, or a later one.
struct WorkersParked {
  Round round{};
};

// The worker was told of a preemption at this moment: by kLeave, or by the signal, which it handles.
struct WorkerTold {
  Round round{};
  int local_rank = 0;
};

enum class TimerId : std::uint32_t {};
struct TimerExpired {  // ignored if another timer was armed since, or none is armed
  TimerId timer{};
};
struct StacksTaken {  // the answer to the TakeStacks action
  Round round{};
};
struct WorkerSeen {
  bool handles_stop = false;  // the signal that stops it runs a handler of its own
  bool has_gpu = false;       // it has a GPU open
  bool has_record = false;    // it keeps one of its collectives
  std::optional<std::chrono::milliseconds> in_call =
      {};               // since it entered its collective; none: it is in none
  bool leaves = false;  // it was told at its boundary to leave, and may be saving

  bool operator==(const WorkerSeen&) const = default;
};
struct WorkersSeen {  // the answer to the LookAtWorkers action, which comes at once
  Round round{};
  std::vector<WorkerSeen> workers;  // by local rank; the values of one that has ended do not matter
};
struct RoundClosed {  // the answer to the CloseRound action
  Round round{};
};
struct LeaderLost {  // the connection broke and was not restored, or the leader is silent
  std::string sentence;
  bool was_reached = true;  // false: there was never a connection
};
struct LeaderReplaced {};  // another process leads the job now, or soon will: join it
struct LeaderFound {
  bool is_hosted = false;  // as NodeConfig::hosts_leader
};
// Before a leader is found: there is none, or this agent lacks something it needs.
struct CannotRun {
  int exit_code = 0;
  std::string sentence;
};

// All workers have announced that they can recover.
struct WorkersCanRecover {
  Round round{};
};
// A worker has made its groups anew, and has its state.
struct WorkerRegrouped {
  Round round{};
  int local_rank = 0;
  std::uint32_t generation = 0;
};

// A worker has left its loop of steps: it comes to no generation that begins from here on, or has begun.
struct WorkerCannotRegroup {
  Round round{};
  int local_rank = 0;
};

// The steps at the end of a job, in this order: everything that can still be delivered is
// delivered, and the report is the last text on the console.
enum class EndStep {
  kLogs,       // if clients follow logs: write the workers' output to the log files
  kFollowers,  // send these clients the last lines
  kLeader,     // tell the leader of this node's end; a leader here: wait until no node needs it
  kProgress,   // report the last progress (Kubeflow Trainer)
  kOutput,     // write the workers' output to the console
  kReport,     // print the report, and copy it (Kubernetes, an outer launcher)
  kEvents,     // write the last events
  kConsole,    // write what is queued for the console
};
struct StepTaken {  // the answer to the TakeStep action
  EndStep step{};
};

using NodeEvent = std::variant<
    rdzv::Refused, rdzv::Warning, rdzv::WaitForNodes, rdzv::WaitAsSpare, rdzv::OpenStore,
    rdzv::RoundStart, rdzv::RoundStop, rdzv::DeclaredLost, rdzv::JobEnd, rdzv::GroupBroken,
    rdzv::ReplaceWorker, rdzv::HoldSteps, rdzv::LeaveAt, StoreResult, WorkerEnded, StopSignal,
    PreemptSignal, TimerExpired, StacksTaken, RoundClosed, LeaderLost, LeaderReplaced, LeaderFound,
    CannotRun, StepTaken, WorkersCanRecover, WorkerRegrouped, WorkerHung, WorkerCannotRegroup,
    RegroupIsLate, WorkersSeen, WorkerStarted, StartIsLate, WorkersHeld, WorkerTold, WorkersParked>;

// ---- actions

struct OpenRoundStore {
  Round round{};
  bool operator==(const OpenRoundStore&) const = default;
};
struct StartWorkers {
  rdzv::RoundStart start;
  bool operator==(const StartWorkers&) const = default;
};
struct SignalWorker {  // its whole process group
  int local_rank = 0;
  int signal = 0;
  bool operator==(const SignalWorker&) const = default;
};
// Tells the worker of a preemption: by its link, or by this signal if it handles that. No deadline.
struct AskToLeave {
  int local_rank = 0;
  // 0: what --preempt-signal names, if anything
  int signal = 0;
  bool operator==(const AskToLeave&) const = default;
};
// Each worker, and each that takes a place in this round, waits at its next step boundary; then report WorkersHeld.
struct HoldWorkers {
  Round round{};
  // kRoundStop: if they cannot be stopped between two steps, they go on. kNow: they all go on, and nothing is reported.
  rdzv::HoldSteps::Until until{};
  bool operator==(const HoldWorkers&) const = default;
};
struct ParkWorkers {  // when they have done so many steps; they go on until then
  Round round{};
  std::int64_t after_step = 0;
  bool operator==(const ParkWorkers&) const = default;
};
struct LetWorkersLeave {  // at this boundary; they go on until then
  Round round{};
  std::int64_t boundary = 1;
  bool operator==(const LetWorkersLeave&) const = default;
};
struct
    TellGroupBroken {  // to the live workers: the one with this rank, here or on another node, is gone
  Round round{};
  int rank = 0;
  bool operator==(const TellGroupBroken&) const = default;
};
// A generation begins: if the rank is of this node, its prepared standby takes its place (else report
// WorkerEnded once more); all other live workers make their groups anew.
struct Replace {
  Round round{};
  std::uint32_t generation = 0;
  int rank = 0;
  std::optional<int> local_rank;  // if it is of this node
  rdzv::WorkerFailure failure;    // the one before's; without stderr_tail
  int restarts = 0;               // charged to the budget so far, with this one
  int max_restarts = 0;
  bool operator==(const Replace&) const = default;
};
struct ShowLate {  // workers that have not regrouped in the last generation, and what they do
  Round round{};
  std::vector<int> local_ranks;
  bool operator==(const ShowLate&) const = default;
};
struct ShowStarting {  // the workers whose programs are not executed yet
  Round round{};
  std::vector<int> local_ranks;
  bool operator==(const ShowStarting&) const = default;
};
struct ArmTimer {  // replaces the timer that is armed
  TimerId timer{};
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct GraceOver {  // the workers that still run get SIGKILL because they did not end in time
  std::chrono::milliseconds grace{};
  bool after_failure = false;
  bool operator==(const GraceOver&) const = default;
};
struct LookAtWorkers {  // that still run after a failure; `signal` is the one that stopped them
  Round round{};
  int signal = 0;
  bool operator==(const LookAtWorkers&) const = default;
};
// To the user: after a failure, these workers may still save something.
struct WaitForSaving {
  std::vector<int> local_ranks;
  std::chrono::milliseconds left{};  // until SIGKILL, at the latest
  bool operator==(const WaitForSaving&) const = default;
};
struct TakeStacks {  // the workers that still run: their stacks
  Round round{};
  bool operator==(const TakeStacks&) const = default;
};
struct CloseRound {  // disarm the timer, kill or spare the workers' orphans, close the store
  Round round{};
  bool spares_orphans = false;
  bool operator==(const CloseRound&) const = default;
};
struct CloseStore {  // its round never began
  Round round{};
  bool operator==(const CloseStore&) const = default;
};
struct TellLeader {
  rdzv::ToLeader message;
  bool operator==(const TellLeader&) const = default;
};
struct Join {                                 // send NodeHello as a new node
  std::optional<rdzv::LastRound> last_round;  // that this node was in; none: it was in none
  bool operator==(const Join&) const = default;
};
struct Announce {  // to the user
  std::variant<rdzv::Warning, rdzv::WaitForNodes, rdzv::WaitAsSpare> notice;
  bool operator==(const Announce&) const = default;
};
struct Finish {  // the outcome of the job on this node; the steps of EndStep follow
  rdzv::JobOutcome outcome;
  bool operator==(const Finish&) const = default;
};
struct TakeStep {
  EndStep step{};
  bool operator==(const TakeStep&) const = default;
};
struct Exit {
  bool operator==(const Exit&) const = default;
};
using NodeAction =
    std::variant<OpenRoundStore, StartWorkers, SignalWorker, AskToLeave, TellGroupBroken, ArmTimer,
                 GraceOver, TakeStacks, CloseRound, CloseStore, TellLeader, Join, Announce, Finish,
                 TakeStep, Exit, Replace, ShowLate, LookAtWorkers, WaitForSaving, ShowStarting,
                 HoldWorkers, LetWorkersLeave, ParkWorkers>;

}  // namespace ddprun::agent
