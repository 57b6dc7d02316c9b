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
//   RoundStop         tell RoundStopped          stop the workers (1) (2) (4)     then answer it
//   GroupBroken       ignore                     TellGroupBroken                  TellGroupBroken
//   JobEnd            Goodbye, Finish            Goodbye, stop the workers (1)    Goodbye; then finish
//   LeaderLost        Finish                     stop the workers (2)             then finish
//   DeclaredLost,     Join                       stop the workers (1)             then join
//     LeaderReplaced
//   Refused           Finish                     ignore                           ignore
//   a notice          Announce                   Announce                         Announce
//   WorkerEnded ok    ignore                     first: tell SomeWorkersDone;     last: close the round
//                                                last: tell WorkersDone (2)
//   WorkerEnded bad   ignore                     TellGroupBroken, tell            remember; last: close the round
//                                                WorkerFailed
//     replaceable     ignore                     tell WorkerReplaceable (3)       remember; last: close the round
//   ReplaceWorker     ignore                     Replace (3)                      ignore (3)
//   HoldSteps         ignore                     HoldWorkers                      ignore
//   LeaveAt           ignore                     LetWorkersLeave                  ignore
//   WorkersHeld       ignore                     tell StepsHeld, or StopWanted (4) ignore
//   WorkerTold        ignore                     note                             ignore
//   WorkerStarted     ignore                     note                             ignore
//   StartIsLate       ignore                     ShowStarting                     ignore
//   WorkersCanRecover ignore                     tell WorkersRecover              ignore
//   WorkerRegrouped   ignore                     of all: tell Regrouped           ignore (3)
//   WorkerCannotRegroup ignore                   note; tell CannotRegroup         ignore (3)
//   WorkerHung        ignore                     KILL that one, timer             ignore
//   RegroupIsLate     ignore                     ShowLate                         ignore
//   StopSignal        tell NodeLeaving           tell NodeLeaving; forward it (4) tell NodeLeaving; second: KILL
//   PreemptSignal     tell NodeLeaving           AskToLeave, tell LeaveWanted (2) first: tell NodeLeaving
//   TimerExpired      ignore                     a stop signal waits: forward it  as its stage says, below
//                                                (4); hung ones live: stop as
//                                                after a failure
//   StacksTaken, WorkersSeen, WorkersParked, RoundClosed   ignore   ignore        as its stage says, below
//
//   (1) with the short grace period if a worker has failed or a node is lost: a peer is missing, so the workers cannot
//       save anything together. After a planned stop (leave, arrival, restart, stop) it is shutdown_timeout
//   (2) after a PreemptSignal the round runs on. From the first worker on that has ended because of it (has_left), the others
//       of this node leave as well, and the last one that ends takes the node to Stopping, with NodeLeaving to the leader, if
//       this node is preempted itself, else with WorkersDone: the NodeLeaving of another node follows. Without such a worker the
//       program has come to its end, and the job succeeds as if there had been no preemption. If the round is stopped or the
//       leader is lost, NodeLeaving is told then. Workers that were told of the preemption have their own time then (Asked)
//   (3) the leader decides: ReplaceWorker, or GroupBroken and RoundStop. If the workers are stopped before that, or the
//       leader is told that this node leaves, its workers get TellGroupBroken first. regrouping.h has what follows
//       ReplaceWorker. After WorkerFailed it is dropped, since the leader will stop the round
//   (4) workers that do not handle SIGTERM are stopped between two steps, the same two on all nodes: HoldWorkers, StopWanted,
//       RoundStop with the step, and then NodeLeaving. NodeLeaving at once, and the signal to the workers, if WorkersHeld says
//       that they cannot be (less than 0), with the second StopSignal, or when they have had the time of three steps, or a fifth
//       of shutdown_timeout
//
//   A worker starts until its program is executed, which a file server may hold for ever. Until then the node is in the round
//   like any other: it is stopped in the same way, and nothing is decided because a start is late.
//
//   What Stopping has: a stage, whether this node leaves (leaving.h), and what follows when the round is closed.
//
//   event \ stage     Asked             Grace                   Stacks          Killed              Closing     Closed
//   stop the workers  TERM; Grace       ignore                  ignore          ignore              ignore      ignore
//   second StopSignal never             KILL; Killed            KILL; Killed    ignore              ignore      ignore
//   TimerExpired      LookAtWorkers     after a failure: (1)    KILL; Killed    give up (2)         never       never
//                                       else: TakeStacks; Stacks
//   WorkersSeen       wait, TERM: (3)   KILL some, timer (1)    ignore          ignore              ignore      ignore
//   StacksTaken       ignore            ignore                  KILL; Killed    ignore              ignore      ignore
//   WorkerEnded       LookAtWorkers (3) ignore                  ignore          ignore              never       never
//     the last one    Closing           Closing                 Closing         Closing             what follows
//   RoundClosed       ignore            ignore                  ignore          ignore              Closed (4)  ignore
//
//   Parking (workers go on until the step after which they are stopped) is as Asked, but TimerExpired and WorkersParked stop the
//   workers, and nothing is looked at.
//
//   (1) LookAtWorkers, unless failure_shutdown_timeout is given or shutdown_timeout is over: then KILL. The grace period is
//       1 s, or 5 s for a worker that has a GPU open, and it counts from the stop; but for a worker that handles the stop
//       signal, and is known to be outside of collectives, from its next collective on. No stacks are taken: it is known
//       what the workers wait for
//   (2) tell NodeStuck and await JobEnd; if the leader no longer counts on this node: finish with a code of its own
//   (3) one that leaves may be saving, for which it has all its time. Otherwise the workers are stopped: after a failure, or
//       when they have had shutdown_timeout to come to their boundary
//   (4) what follows is the highest of: await the leader's word, answer its RoundStop, join anew, finish on its own (a leave
//       without the leader, LeaderLost), finish with the outcome of JobEnd
//
//   Ending takes the steps of end_of_job.h, and then returns Exit. It ignores all other events, Ended every event.
//
// clang-format on
//
// CloseRound is a separate action, because orphans that the workers left behind must be killed too,
// which takes time; only after the success of the whole job are they spared. A node whose workers are done stays in
// Running until the leader knows of all nodes, and then either JobEnd or RoundStop comes. RoundStopped is sent, or the
// job ends, only after the event RoundClosed.
// Events of another round than the current one, and of another timer than the armed one, are
// dropped first (why_stale).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/core/end_of_job.h"
#include "agent/core/leaving.h"
#include "agent/core/node_events.h"
#include "agent/core/regrouping.h"

namespace ddprun::agent {

struct NodeConfig {
  int local_world_size = 1;
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  std::chrono::milliseconds kill_timeout{10'000};      // from SIGKILL until we give up on a worker
  bool hosts_leader = true;  // if this node leaves, the job ends: the leader decides the outcome
  // As shutdown_timeout, when a worker has failed or a node is lost; none: by what the workers do.
  std::optional<std::chrono::milliseconds> failure_shutdown_timeout = {};
  // How long a leader here waits for nodes that do not know of the job's end yet.
  std::chrono::milliseconds leader_leave_timeout{10'000};
  bool kills_orphans = false;  // also after success
};

class NodeCore {
 public:
  explicit NodeCore(NodeConfig config);

  std::vector<NodeAction> step(const NodeEvent& event);
  // The reason of the last step's decision, as a sentence; empty: the event says it.
  std::string_view why() const { return why_; }

  Round round() const { return round_; }
  bool is_running() const { return std::holds_alternative<Running>(state_); }
  // A stop signal has come, and the workers may end their step before they hear of it.
  std::optional<int> signal_ahead() const {
    const std::optional<StopAhead> ahead = stop_ahead();
    return ahead ? std::optional(ahead->signal) : std::nullopt;
  }
  bool is_waiting() const { return std::holds_alternative<Waiting>(state_); }
  bool is_stopping() const { return std::holds_alternative<Stopping>(state_); }
  // After Finish, and after Exit.
  bool is_over() const { return std::holds_alternative<Ending>(state_) || has_ended(); }
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }
  // Workers were told of a preemption, here or on another node, and have not been told to stop: they may need long to
  // save.
  bool leaves_in_its_own_time() const {
    const auto* running = std::get_if<Running>(&state_);
    if (running != nullptr) return running->was_told || running->has_left || running->is_agreed;
    const auto* stopping = std::get_if<Stopping>(&state_);
    return stopping != nullptr && stopping->is<Asked>();
  }
  // This node ends on its own: the leader, on another node, goes on without it.
  bool has_left() const {
    const auto* stopping = std::get_if<Stopping>(&state_);
    return stopping != nullptr && std::holds_alternative<FinishAlone>(stopping->then);
  }

 private:
  using Out = std::vector<NodeAction>;

  struct Waiting {
    std::optional<Round> store;  // of a round that has not begun; none: no store is open
  };
  struct Workers {
    std::vector<bool> has_ended;  // by local rank
    std::vector<int> hung;        // local ranks that were killed for it and have not ended
    int first_rank = 0;
    std::vector<int> done;  // ranks that ended with 0 before this node was told to stop
    Leaving leaving;
    // A worker was told of a preemption, here or on another node, and one has ended because of it.
    bool was_told = false;
    bool has_left = false;
    bool is_agreed = false;  // at which step boundary all workers leave
    // The longest of their last steps, as WorkersHeld had it.
    std::chrono::milliseconds step = std::chrono::milliseconds::max();
    Regrouping regrouping;

    bool have_all_ended() const;
    std::vector<int> live() const;  // local ranks
  };
  struct StopAhead {  // a stop signal has come, and the workers may end their step first
    int signal = 0;
    bool is_told = false;  // StopWanted; before that WorkersHeld is awaited
  };
  struct Running : Workers {
    std::vector<bool> has_started;
    std::optional<StopAhead> stop_ahead;
    bool has_failed = false;                    // WorkerFailed was told: the leader stops the round
    std::vector<rdzv::WorkerFailure> failures;  // since has_left
  };

  // The stages of Stopping. A timer runs in Parking, in Grace, unless the workers are looked at, in Stacks and in Killed.
  // Workers were told of a preemption. If they are to leave at a boundary, they are looked at, or a timer runs.
  struct Asked {
    bool is_looked_at;   // LookAtWorkers is not answered yet
    bool after_failure;  // as in Grace
    bool has_had_time;   // to come to the boundary
    bool is_saving;      // at the last look a worker was leaving
  };
  struct Parking {};  // ParkWorkers was asked for
  struct Grace {
    int signal = 0;              // that has stopped the workers
    bool after_failure = false;  // a worker failed, or a node is lost
    // The limit of the timer; none: LookAtWorkers is not answered yet.
    std::optional<std::chrono::milliseconds> limit;
    std::chrono::milliseconds waited{};  // since that signal, until the timer expired last
    std::vector<int> killed = {};        // local ranks whose own grace period was over
    bool was_saving_said = false;        // WaitForSaving
  };
  struct Stacks {};
  struct Killed {};
  struct Closing {};  // CloseRound was asked for
  struct Closed {};
  using Stage = std::variant<Asked, Parking, Grace, Stacks, Killed, Closing, Closed>;

  // What follows when the round is closed: the highest one.
  struct AwaitLeader {};
  struct AnswerStop {};  // with RoundStopped
  struct JoinAnew {};    // declared lost, or the leader was replaced
  struct FinishAlone {
    rdzv::JobOutcome outcome;
  };
  struct FinishJob {
    rdzv::JobOutcome outcome;
  };
  using Then = std::variant<AwaitLeader, AnswerStop, JoinAnew, FinishAlone, FinishJob>;

  struct Stopping : Workers {
    Stage stage;
    Then then;
    std::vector<rdzv::WorkerFailure> failures;  // of workers that failed while stopping

    template <typename Any>
    bool is() const {
      return std::holds_alternative<Any>(stage);
    }
    bool is_closing() const { return is<Closing>() || is<Closed>(); }
    void follow_with(Then next) {
      if (next.index() > then.index()) then = std::move(next);
    }
  };
  struct Ending {
    EndOfJob steps;
  };
  struct Ended {};
  using State = std::variant<Waiting, Running, Stopping, Ending, Ended>;

  bool leads() const { return config_.hosts_leader; }
  const char* why_stale(const NodeEvent& event) const;
  void check() const;

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
  void on(Out& out, const rdzv::HoldSteps& hold);
  void on(Out& out, const rdzv::LeaveAt& leave);
  void on(Out& out, const StoreResult& result);
  void on(Out& out, const WorkerEnded& ended);
  void on(Out& out, const WorkersHeld& held);
  void on(Out& out, const WorkersParked& parked);
  void on(Out& out, const WorkerTold& told);
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

  void worker_has_left(Out& out, const WorkerEnded& ended);
  void preempted_while_running(Out& out, Running& running, int signal);
  void tell_if_in_vain(Out& out, const Workers& workers) const;
  void join_anew(Out& out);
  void leave(Out& out, const rdzv::NodeLeaving& leaving);
  void tell_of_preemption(Out& out, Stopping& stopping);
  void finish(Out& out, rdzv::JobOutcome outcome);
  rdzv::JobOutcome own_outcome(rdzv::JobOutcome::Kind kind, int exit_code) const;
  void finish_alone(Out& out, rdzv::JobOutcome outcome);
  void close_unused_store(Out& out, std::optional<Round> next_store);

  Running* taking_part();
  void tell_of_dead(Out& out, Workers& workers);
  Stopping* begin_stopping();
  void let_leave(Out& out, bool after_failure);
  void seen_while_leaving(Out& out, Stopping& stopping, const WorkersSeen& seen);
  bool may_end_step(const Running& running, int signal) const;
  std::optional<StopAhead> stop_ahead() const;
  void stop_without_leader(Out& out, bool after_failure);
  void stop_now(Out& out);
  void tell_of_stop(Out& out, Stopping& stopping, int signal);
  std::chrono::milliseconds time_for_step(const Workers& workers) const;
  void park_workers(Out& out, std::int64_t after_step);
  Stopping* stop_workers(Out& out, int signal, bool after_failure = false);
  void signal_live_workers(Out& out, const Workers& workers, int signal);
  void stop_with_hung_ones(Out& out, const Workers& workers);
  void grace_is_over(Out& out, Stopping& stopping);
  std::chrono::milliseconds short_grace(bool has_gpu) const;
  std::chrono::milliseconds time_left(const Grace& grace, const WorkerSeen& worker) const;
  void kill_workers(Out& out, Stopping& stopping);
  void give_up_on_workers(Out& out, Stopping& stopping);
  void go_on(Out& out);

  void go_on_with(Out& out, EndOfJob::Then then);
  void arm(Out& out, std::chrono::milliseconds after);
  void because(std::string_view sentence) { why_ = sentence; }

  NodeConfig config_;
  State state_;
  Round round_{};
  std::optional<rdzv::LastRound> last_round_;  // that ran here
  std::optional<TimerId> armed_;
  std::uint32_t timers_ = 0;  // number of timers armed so far
  std::string_view why_;      // a literal
};

}  // namespace ddprun::agent
