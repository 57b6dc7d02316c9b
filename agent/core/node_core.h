// The agent's decisions about the workers of its node, as a pure state machine. Its input is
// events: messages of the leader, and what happens to the workers and to the agent. Its output is
// an ordered list of actions. The supervisor performs the actions and reports their results as
// events. No I/O, no clock, no threads.
//
// clang-format off
//
//   Waiting ──RoundStart──▶ Running ──RoundStop, stop signal──▶ Stopping ──all ended──▶ Waiting
//      ▲                                                                                  │
//      └───────────────────────────── next RoundStart ────────────────────────────────────┘
//   any state ──JobEnd, LeaderLost, leave of a node without the leader──▶ Ending (after its workers) ──▶ Ended
//
//   event \ state     Waiting                    Running                          Stopping
//   LeaderFound       Join                       ignore                           ignore
//   CannotRun         Finish                     ignore                           ignore
//   OpenStore         OpenRoundStore             ignore                           ignore
//   StoreResult       tell leader                ignore                           ignore
//   RoundStart        StartWorkers               ignore                           ignore
//   RoundStop         tell RoundStopped          TERM, timer (4)                  tell when all ended (3)
//   GroupBroken       ignore                     TellGroupBroken (6,7)            TellGroupBroken (6,7)
//   JobEnd            Goodbye, Finish            Goodbye, TERM, timer; Finish (13) Goodbye; Finish when all ended
//   LeaderLost        Finish                     TERM, timer; then Finish         Finish when all ended
//   DeclaredLost,     Join                       TERM, timer (4); then Join       Join when all ended
//     LeaderReplaced
//   Refused           Finish                     ignore                           ignore
//   a notice          Announce                   Announce                         Announce
//   WorkerEnded ok    ignore                     first: tell SomeWorkersDone;     last: close the round
//                                                last: tell WorkersDone
//   WorkerEnded bad   ignore                     TellGroupBroken (6); tell        remember; last: close
//                                                WorkerFailed
//     replaceable     ignore                     tell WorkerReplaceable (7)       remember; last: close
//   ReplaceWorker     ignore                     Replace (8)                      ignore (9)
//   WorkerStarted     ignore                     note (14)                        ignore
//   StartIsLate       ignore                     ShowStarting (14)                ignore
//   WorkersCanRecover ignore                     first: tell WorkersRecover       ignore
//   WorkerRegrouped   ignore                     of all: tell Regrouped (8)       ignore (9)
//   WorkerCannotRegroup ignore                   note; tell CannotRegroup (8)     ignore (9)
//   WorkerHung        ignore                     KILL that one, timer (10)        ignore
//   RegroupIsLate     ignore                     ShowLate (11)                    ignore
//   StopSignal        tell NodeLeaving (1)       tell NodeLeaving; forward (1)    first: tell NodeLeaving (1); second: KILL
//   PreemptSignal     tell NodeLeaving (1)       notice (3)                       first: tell NodeLeaving (1)
//   TimerExpired      ignore                     TERM, timer (10)                 TakeStacks, LookAtWorkers or KILL (5);
//                                                                                 then give up (2)
//   StacksTaken       ignore                     ignore                           KILL
//   WorkersSeen       ignore                     ignore                           KILL some, timer (12)
//   RoundClosed       ignore                     ignore                           what is listed above for "all ended"
//
//   Finish begins Ending, which takes the steps of EndStep in their order, and then returns Exit:
//   StepTaken, TimerExpired       of the current step: take the next step
//   StopSignal, PreemptSignal     before kLeader: go to kLeader; in kLeader the second one: go to kOutput; kProgress is
//                                 skipped; in kOutput: take the next step; from then on every step has at most half a
//                                 second
//
//   Ending ignores all other events, Ended every event.
//   (1) a node that does not host the leader then ends as soon as its workers have ended; one that does awaits JobEnd
//   (2) tell NodeStuck and await JobEnd; if the leader no longer counts on this node: Finish
//   (3) a preempted node tells NodeLeaving (1) when its workers have ended or the round is stopped. Until then its workers
//       finish their step together with those of other nodes, which may not have a notice of their own yet
//   (4) the short grace period (12) when a worker has failed or a node is lost: a peer is missing, so the workers cannot
//       save anything together. After a planned stop (leave, arrival, restart, stop) it is shutdown_timeout
//   (5) the grace period is over (GraceOver). After a failure the workers wait for a missing peer, and a grace period of
//       zero asks for no diagnosis: KILL, after a look at the workers (12). Otherwise the stacks show why the workers hang:
//       TakeStacks with a limit, then KILL
//   (6) over their links, to workers that wait for the one that is gone and do not notice it themselves (NCCL)
//   (7) the leader decides: ReplaceWorker, or GroupBroken and RoundStop. If the workers are stopped before that for another
//       reason, or the leader is told that this node leaves: first TellGroupBroken
//   (8) of a rank of this node: that worker lives again; if the shell cannot hand over, it reports WorkerEnded once more,
//       no longer replaceable. A generation that does not come after the last one is dropped; only those that have
//       regrouped in the last one count, and nothing is told while one of them is dead. If one that lives and has not
//       regrouped cannot, the leader is told CannotRegroup at once. After WorkerFailed it is dropped,
//       since the leader will stop the round
//   (9) a preempted node that has not told it takes part as in Running, so that the workers can finish their step; a worker
//       that takes a place is asked to leave, too
//   (10) who hangs is killed, and its end is a failure like any other. One that does not end even so hangs in the kernel:
//        the others are stopped as after a failure, and then this node gives up on it (2)
//   (11) of the last generation: those that live and have not regrouped in it. The leader will wait a while longer, and then
//        stop the round
//   (12) failure_shutdown_timeout, where it is given, is the grace period of every worker after a failure. Else the grace
//        period is 1 s, or 5 s for a worker that has a GPU open, and it counts from the stop; but for a worker that handles
//        the stop signal, and is known to be outside of collectives, from its next collective on. No grace period is longer
//        than shutdown_timeout
//   (13) the round of a successful job is closed after JobEnd: a node whose workers are done stays in Running until the
//        leader knows of all nodes, and then either JobEnd or RoundStop comes
//   (14) a worker starts until its program is executed, which a file server may hold for ever. Until then the node is in
//        the round like any other: it is stopped in the same way, and nothing is decided because a start is late
//
// clang-format on
//
// CloseRound is a separate action, because orphans that the workers left behind must be killed too,
// which takes time; only after the success of the whole job are they spared (13). RoundStopped is sent, or the job ends,
// only after the event RoundClosed.
// Events of another round than the current one, and of another timer than the armed one, are
// dropped first (is_stale).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
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
  // With a failure: a prepared standby of its rank waits, or it had taken the place of another one itself.
  std::optional<Replaceable> replaceable = {};
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
struct WorkerHung {  // the verdict is that this worker hangs, and it is to be killed (--on-hang)
  Round round{};
  int local_rank = 0;
};
struct StopSignal {
  int signal = 0;
};
struct PreemptSignal {  // the scheduler will soon take the node back
  int signal = 0;
};
// Some time after the Replace action. Large models take long, too: nothing is decided.
struct RegroupIsLate {
  Round round{};
  std::uint32_t generation = 0;
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
      {};  // since it entered its collective; none: it is in none

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

using NodeEvent =
    std::variant<rdzv::Refused, rdzv::Warning, rdzv::WaitForNodes, rdzv::WaitAsSpare,
                 rdzv::OpenStore, rdzv::RoundStart, rdzv::RoundStop, rdzv::DeclaredLost,
                 rdzv::JobEnd, rdzv::GroupBroken, rdzv::ReplaceWorker, StoreResult, WorkerEnded,
                 StopSignal, PreemptSignal, TimerExpired, StacksTaken, RoundClosed, LeaderLost,
                 LeaderReplaced, LeaderFound, CannotRun, StepTaken, WorkersCanRecover,
                 WorkerRegrouped, WorkerHung, WorkerCannotRegroup, RegroupIsLate, WorkersSeen,
                 WorkerStarted, StartIsLate>;

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
struct AskToLeave {  // asks the worker to finish its step and exit; no deadline
  int local_rank = 0;
  int signal = 0;  // sent instead to a worker that accepts no such request over its link
  bool operator==(const AskToLeave&) const = default;
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
  rdzv::WorkerFailure failure;    // of the one before; without stderr_tail
  int restarts = 0;               // charged to the budget so far, with this one
  int max_restarts = 0;
  bool operator==(const Replace&) const = default;
};
struct ShowLate {  // who has not regrouped in the last generation, and what they do
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
struct TakeStacks {  // of the workers that still run
  Round round{};
  bool operator==(const TakeStacks&) const = default;
};
struct CloseRound {  // disarm the timer, kill or spare the workers' orphans, close the store
  Round round{};
  bool spares_orphans = false;
  bool operator==(const CloseRound&) const = default;
};
struct CloseStore {  // of a round for which it was opened and which never began
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
                 TakeStep, Exit, Replace, ShowLate, LookAtWorkers, WaitForSaving, ShowStarting>;

struct NodeConfig {
  int local_world_size = 1;
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  std::chrono::milliseconds kill_timeout{10'000};      // from SIGKILL until we give up on a worker
  bool hosts_leader = true;  // if this node leaves, the job ends: the leader decides the outcome
  // As shutdown_timeout, when a worker has failed or a node is lost; none: by what the workers do (12).
  std::optional<std::chrono::milliseconds> failure_shutdown_timeout = {};
  // How long a leader here waits for nodes that do not know of the job's end yet.
  std::chrono::milliseconds leader_leave_timeout{10'000};
  bool kills_orphans = false;  // also after success
};

class NodeCore {
 public:
  explicit NodeCore(NodeConfig config);

  std::vector<NodeAction> step(const NodeEvent& event);

  Round round() const { return round_; }
  bool is_running() const { return std::holds_alternative<Running>(state_); }
  bool is_waiting() const { return std::holds_alternative<Waiting>(state_); }
  bool is_stopping() const { return std::holds_alternative<Stopping>(state_); }
  // After Finish, and after Exit.
  bool is_over() const { return std::holds_alternative<Ending>(state_) || has_ended(); }
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }
  // Preempted: the workers were asked to leave, and have not been told to stop.
  bool leaves_in_its_own_time() const {
    const auto* stopping = std::get_if<Stopping>(&state_);
    return stopping != nullptr && stopping->has_only_notice;
  }
  // This node ends on its own: the leader, on another node, goes on without it.
  bool has_left() const {
    const auto* stopping = std::get_if<Stopping>(&state_);
    return stopping != nullptr && stopping->is_own_outcome;
  }

 private:
  using Out = std::vector<NodeAction>;

  struct Waiting {
    std::optional<Round> store;  // of a round that has not begun; none: no store is open
  };
  // By local rank.
  struct Workers {
    std::vector<bool> has_ended;
    std::vector<std::uint32_t> generations;  // in which each has regrouped last
    std::vector<bool> cannot_regroup;
    int first_rank = 0;
    std::vector<int> done;  // ranks that ended with 0 before this node was told to stop
    std::map<int, int>
        undecided;  // by rank, the local ranks of those that the leader may replace (7)
    std::uint32_t generation = 0;  // of the last ReplaceWorker

    // It lives, and has not regrouped in the last generation.
    bool is_awaited(std::size_t local_rank) const {
      return !has_ended[local_rank] && generations[local_rank] != generation;
    }
  };
  struct Running : Workers {
    std::vector<bool> has_started;
    bool are_some_done = false;
    bool can_recover = false;  // WorkersRecover was told
    bool has_failed = false;   // WorkerFailed was told: the leader stops the round
    std::vector<int> hung;     // local ranks that were killed for it and have not ended
  };
  struct Stopping : Workers {
    std::vector<rdzv::WorkerFailure> failures;  // of workers that failed while stopping
    bool leader_asked = false;                  // RoundStop came: the leader awaits RoundStopped
    bool has_only_notice = false;               // preempted: workers leave without a deadline
    std::optional<rdzv::NodeLeaving> untold;    // of a preemption; the leader is told later (3)
    bool is_preempted = false;                  // a preemption came
    bool is_leaving = false;                    // a stop signal came: the next one kills
    bool was_killed = false;                    // SIGKILL was sent to all
    int signal = 0;                             // that stopped the workers
    std::chrono::milliseconds waited{};         // after a failure, since that signal
    std::vector<int> killed;                    // local ranks whose own grace period was over (12)
    bool was_saving_said = false;               // WaitForSaving
    bool is_closing = false;                    // CloseRound was asked for
    bool is_closed = false;                     // RoundClosed came
    bool is_disowned = false;  // declared lost, or the leader was replaced: join again
    std::optional<rdzv::JobOutcome> outcome;  // JobEnd came, or this node ends on its own
    bool is_own_outcome = false;              // true: the latter
  };
  struct Ending {
    rdzv::JobOutcome::Kind kind{};
    EndStep step{};
    bool is_signalled = false;
    bool is_hurried = false;  // a signal came in kOutput or later
  };
  struct Ended {};
  using State = std::variant<Waiting, Running, Stopping, Ending, Ended>;

  // What the armed timer limits.
  enum class Limit {
    kGrace,              // from the stop signal to SIGKILL
    kGraceAfterFailure,  // the same after a failure, or when a node is lost
    kStacks,             // taking the stacks of workers that will get SIGKILL
    kKill,               // from SIGKILL to the end of the workers
    kEndStep,            // one step of the end
    kKillOfHung,         // from SIGKILL to the end of workers that hang, while the round runs
  };
  struct Armed {
    TimerId timer{};
    Limit limit{};
    std::chrono::milliseconds after{};
  };

  bool leads() const { return config_.hosts_leader; }
  bool is_stale(const NodeEvent& event) const;

  void on(Out& out, const rdzv::Refused& refused);
  void on(Out& out, const rdzv::Warning& warning) { out.push_back(Announce{warning}); }
  void on(Out& out, const rdzv::WaitForNodes& wait) { out.push_back(Announce{wait}); }
  void on(Out& out, const rdzv::WaitAsSpare& wait) { out.push_back(Announce{wait}); }
  void on(Out& out, const rdzv::OpenStore& open);
  void on(Out& out, const rdzv::RoundStart& start);
  void on(Out& out, const rdzv::RoundStop& stop);
  void on(Out& out, const rdzv::DeclaredLost&) { join_anew(out); }
  void on(Out& out, const rdzv::JobEnd& end);
  void on(Out& out, const rdzv::GroupBroken& broken);
  void on(Out& out, const rdzv::ReplaceWorker& replace);
  void on(Out& out, const StoreResult& result);
  void on(Out& out, const WorkerEnded& ended);
  void on(Out& out, const WorkerStarted& started);
  void on(Out& out, const StartIsLate& late);
  void on(Out& out, const WorkerHung& hung);
  void on(Out& out, const StopSignal& stop);
  void on(Out& out, const PreemptSignal& preempt);
  void on(Out& out, const TimerExpired& expired);
  void on(Out& out, const StacksTaken& taken);
  void on(Out& out, const WorkersSeen& seen);
  void on(Out& out, const RoundClosed& closed);
  void on(Out& out, const LeaderLost& lost);
  void on(Out& out, const LeaderReplaced&) { join_anew(out); }
  void on(Out& out, const LeaderFound& found);
  void on(Out& out, const CannotRun& cannot);
  void on(Out& out, const StepTaken& taken);
  void on(Out& out, const WorkersCanRecover& can);
  void on(Out& out, const WorkerRegrouped& regrouped);
  void on(Out& out, const WorkerCannotRegroup& refusal);
  void on(Out& out, const RegroupIsLate& late);
  void tell_who_cannot_regroup(Out& out, const Workers& workers) const;

  void join_anew(Out& out);
  void leave(Out& out, const rdzv::NodeLeaving& leaving);
  void tell_of_preemption(Out& out, Stopping& stopping);
  void finish(Out& out, rdzv::JobOutcome outcome);
  rdzv::JobOutcome own_outcome(rdzv::JobOutcome::Kind kind, int exit_code) const;
  void finish_by_ourselves(Out& out, rdzv::JobOutcome outcome);
  void close_unused_store(Out& out, std::optional<Round> next_store);

  Workers* taking_part();
  void tell_of_undecided(Out& out, Workers& workers);
  Stopping* begin_stopping();
  Stopping* stop_workers(Out& out, int signal, Limit grace = Limit::kGrace);
  void signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal);
  std::chrono::milliseconds short_grace(bool has_gpu) const;
  std::chrono::milliseconds time_left(const Stopping& stopping, const WorkerSeen& worker) const;
  void kill_workers(Out& out, Stopping& stopping);
  void give_up_on_workers(Out& out, Stopping& stopping);
  void go_on(Out& out);

  void take_step(Out& out, EndStep step);
  void take_next_step(Out& out);
  void hurry(Out& out);
  std::chrono::milliseconds limit_of(const Ending& ending) const;
  void arm(Out& out, Limit limit, std::chrono::milliseconds after);

  NodeConfig config_;
  State state_;
  Round round_{};
  std::optional<rdzv::LastRound> last_round_;  // that ran here
  std::optional<Armed> armed_;
  std::uint32_t timers_ = 0;  // number of timers armed so far
};

}  // namespace ddprun::agent
