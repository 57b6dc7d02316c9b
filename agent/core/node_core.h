// The agent's decisions about the workers of its node, as a pure state machine: what the leader
// says, what happens to the workers and to the agent itself comes in; what to do comes out, in
// order. The supervisor performs the actions and feeds the events back. No I/O, no clock, no
// threads.
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
//   JobEnd            Goodbye, Finish            Goodbye, TERM, timer; Finish     Goodbye; Finish when all ended
//   LeaderLost        Finish                     TERM, timer; then Finish         Finish when all ended
//   DeclaredLost,     Join                       TERM, timer (4); then Join       Join when all ended
//     LeaderReplaced
//   Refused           Finish                     ignore                           ignore
//   a notice          Announce                   Announce                         Announce
//   WorkerEnded ok    ignore                     first: tell SomeWorkersDone;     last: close the round
//                                                last: tell WorkersDone
//   WorkerEnded bad   ignore                     tell WorkerFailed                remember; last: close
//   StopSignal        tell NodeLeaving (1)       tell NodeLeaving; forward (1)    first: tell NodeLeaving (1); second: KILL
//   PreemptSignal     tell NodeLeaving (1)       notice (3)                       first: tell NodeLeaving (1)
//   TimerExpired      ignore                     ignore                           TakeStacks or KILL (5); then give up (2)
//   StacksTaken       ignore                     ignore                           KILL
//   RoundClosed       ignore                     ignore                           what was to come when all ended
//
//   Finish begins Ending, which takes the steps of EndStep in their order, then says Exit:
//   StepTaken, TimerExpired       of the present step: the next one
//   StopSignal, PreemptSignal     before kOutput: kOutput; then the next one, and those that are left have half a second each
//
//   Ending ignores all other events, Ended every event.
//   (1) a node without the leader then ends by itself, when its workers have; with the leader, it awaits JobEnd
//   (2) tell NodeStuck and await JobEnd; where no leader listens any more: Finish
//   (3) a preempted node tells NodeLeaving (1) when its workers have ended or the round does: until then they finish
//       their step together with the workers of the other nodes, who may not have their own notice yet
//   (4) the short one when a worker has failed or a node is lost: a peer is gone, so workers have nothing left that they
//       could save together. Whatever is planned (leave, arrival, restart, stop) leaves them the whole grace period
//   (5) the workers' time is over (GraceOver). After a failure they wait for a peer that is gone, and with no grace at all
//       nobody wants to know: KILL. Else only their stacks say why they hang: TakeStacks, a limit for that, then KILL
//
// clang-format on
//
// Closing a round is an action of its own, because orphans that the workers left behind have to
// be ended too, which takes an event: only RoundClosed tells the leader RoundStopped, or ends the
// job. Events of another round than the current one, and of another timer than the armed one, are
// dropped first (is_stale).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// ---- events (with everything of rdzv::ToAgent)

struct StoreResult {  // the answer to the OpenRoundStore action
  Round round{};
  std::uint16_t port = 0;
  std::string error;  // a sentence; empty: it is open
};
struct WorkerEnded {
  Round round{};
  int local_rank = 0;
  std::optional<rdzv::WorkerFailure> failure;  // nothing: it ended with 0
};
struct StopSignal {
  int signal = 0;
};
struct PreemptSignal {  // the scheduler will want the node back
  int signal = 0;
};
enum class TimerId : std::uint32_t {};
struct TimerExpired {  // ignored where another one was armed since, or none is needed any more
  TimerId timer{};
};
struct StacksTaken {  // the answer to the TakeStacks action
  Round round{};
};
struct RoundClosed {  // the answer to the CloseRound action
  Round round{};
};
struct LeaderLost {  // its connection broke and did not come back, or it is silent
  std::string sentence;
  bool was_reached = true;  // false: it was never there
};
struct LeaderReplaced {};  // another process leads the job now, or will, and can be joined
struct LeaderFound {
  bool is_hosted = false;  // as NodeConfig::hosts_leader
};
// Before there is a leader: there is none, or what this agent needs is not there.
struct CannotRun {
  int exit_code = 0;
  std::string sentence;
};

// What the end of a job consists of, in this order, so that nothing is lost that can still be
// delivered, and the report is the last thing on the console.
enum class EndStep {
  kLogs,       // what workers wrote is in their files, where somebody follows those
  kFollowers,  // who follows logs has been sent the last of them
  kLeader,     // it knows of this node's end; a leader here: nobody needs it any more
  kProgress,   // the last progress is reported (Kubeflow Trainer)
  kOutput,     // what workers wrote is on the console
  kReport,     // it is said, and copied for others than the user
  kEvents,     // the last events are written
  kConsole,    // what was said is written
};
struct StepTaken {  // the answer to the TakeStep action
  EndStep step{};
};

using NodeEvent = std::variant<rdzv::Refused, rdzv::Warning, rdzv::WaitForNodes, rdzv::WaitAsSpare,
                               rdzv::OpenStore, rdzv::RoundStart, rdzv::RoundStop,
                               rdzv::DeclaredLost, rdzv::JobEnd, StoreResult, WorkerEnded,
                               StopSignal, PreemptSignal, TimerExpired, StacksTaken, RoundClosed,
                               LeaderLost, LeaderReplaced, LeaderFound, CannotRun, StepTaken>;

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
struct AskToLeave {  // in its own time
  int local_rank = 0;
  int signal = 0;  // for a worker that takes no such request over its link
  bool operator==(const AskToLeave&) const = default;
};
struct ArmTimer {  // replaces the one that is armed
  TimerId timer{};
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct GraceOver {  // the workers that still run get SIGKILL because they did not end in time
  std::chrono::milliseconds grace{};
  bool after_failure = false;
  bool operator==(const GraceOver&) const = default;
};
struct TakeStacks {  // of the workers that still run
  Round round{};
  bool operator==(const TakeStacks&) const = default;
};
struct CloseRound {  // disarm the timer, end what workers left behind, close the store
  Round round{};
  bool operator==(const CloseRound&) const = default;
};
struct CloseStore {  // that was opened for a round which never began
  Round round{};
  bool operator==(const CloseStore&) const = default;
};
struct TellLeader {
  rdzv::ToLeader message;
  bool operator==(const TellLeader&) const = default;
};
struct Join {  // say NodeHello, as a new node; one that was in a round knows this
  std::optional<rdzv::LastRound> last_round;
  bool operator==(const Join&) const = default;
};
struct Announce {  // to the user
  std::variant<rdzv::Warning, rdzv::WaitForNodes, rdzv::WaitAsSpare> notice;
  bool operator==(const Announce&) const = default;
};
struct Finish {  // this is how it ended; what is left to do are the steps of its end
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
using NodeAction = std::variant<OpenRoundStore, StartWorkers, SignalWorker, AskToLeave, ArmTimer,
                                GraceOver, TakeStacks, CloseRound, CloseStore, TellLeader, Join,
                                Announce, Finish, TakeStep, Exit>;

struct NodeConfig {
  int local_world_size = 1;
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  std::chrono::milliseconds kill_timeout{10'000};      // from SIGKILL until we give up on a worker
  bool hosts_leader = true;  // this node's leave is the end of the job, which the leader settles
  // As shutdown_timeout, when a worker has failed or a node is lost.
  std::chrono::milliseconds failure_shutdown_timeout{1'000};
  // How long a leader here stays for nodes that have not heard of the end.
  std::chrono::milliseconds leader_leave_timeout{10'000};
};

class NodeCore {
 public:
  explicit NodeCore(NodeConfig config);

  std::vector<NodeAction> step(const NodeEvent& event);

  Round round() const { return round_; }
  bool is_running() const { return std::holds_alternative<Running>(state_); }
  bool is_waiting() const { return std::holds_alternative<Waiting>(state_); }
  bool is_stopping() const { return std::holds_alternative<Stopping>(state_); }
  bool is_over() const { return std::holds_alternative<Ending>(state_) || has_ended(); }  // Finish
  bool has_ended() const { return std::holds_alternative<Ended>(state_); }                // Exit
  // Preempted: the workers have a notice, and were not told to stop.
  bool leaves_in_its_own_time() const;
  // The leader, elsewhere, goes on without this node, which only ends what it has begun.
  bool has_left() const;

 private:
  using Out = std::vector<NodeAction>;

  struct Waiting {
    std::optional<Round> store;  // was opened, and its round has not begun
  };
  struct Running {
    std::vector<bool> has_ended;  // by local rank
    bool are_some_done = false;
  };
  struct Stopping {
    std::vector<bool> has_ended;
    std::vector<rdzv::WorkerFailure> failures;  // of workers that ended meanwhile
    bool leader_asked = false;                  // RoundStop came: it awaits RoundStopped
    bool has_only_notice = false;               // of a preemption: workers leave in their own time
    std::optional<rdzv::NodeLeaving> untold;  // the preemption, as long as the leader need not know
    bool is_preempted = false;                // a preemption came
    bool is_leaving = false;                  // a stop signal came: the next one means now
    bool was_killed = false;                  // SIGKILL was sent
    bool is_closing = false;                  // CloseRound was asked for
    bool is_closed = false;                   // RoundClosed came
    bool is_disowned = false;  // the leader, or another one, goes on without this node
    std::optional<rdzv::JobOutcome> outcome;  // JobEnd came, or this node ends by itself:
    bool is_own_outcome = false;
  };
  struct Ending {
    rdzv::JobOutcome::Kind kind{};
    EndStep step{};
    bool is_hurried = false;  // a signal came
  };
  struct Ended {};
  using State = std::variant<Waiting, Running, Stopping, Ending, Ended>;

  // What the armed timer limits.
  enum class Limit {
    kGrace,              // the workers' time until SIGKILL
    kGraceAfterFailure,  // the same, when a peer of theirs is gone
    kStacks,             // of workers that are about to get SIGKILL
    kKill,               // the kernel's, which has SIGKILL for them
    kEndStep,
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
  void on(Out& out, const rdzv::DeclaredLost& lost);
  void on(Out& out, const rdzv::JobEnd& end);
  void on(Out& out, const StoreResult& result);
  void on(Out& out, const WorkerEnded& ended);
  void on(Out& out, const StopSignal& stop);
  void on(Out& out, const PreemptSignal& preempt);
  void on(Out& out, const TimerExpired& expired);
  void on(Out& out, const StacksTaken& taken);
  void on(Out& out, const RoundClosed& closed);
  void on(Out& out, const LeaderLost& lost);
  void on(Out& out, const LeaderReplaced& replaced);
  void on(Out& out, const LeaderFound& found);
  void on(Out& out, const CannotRun& cannot);
  void on(Out& out, const StepTaken& taken);

  void join_anew(Out& out);
  void leave(Out& out, const rdzv::NodeLeaving& leaving);
  void tell_of_preemption(Out& out, Stopping& stopping);
  void finish(Out& out, rdzv::JobOutcome outcome);
  rdzv::JobOutcome own_outcome(rdzv::JobOutcome::Kind kind, int exit_code) const;
  void finish_by_ourselves(Out& out, rdzv::JobOutcome outcome);
  void close_unused_store(Out& out, std::optional<Round> next_store);

  Stopping* begin_stopping();
  Stopping* stop_workers(Out& out, int signal, Limit grace = Limit::kGrace);
  void signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal);
  void grace_is_over(Out& out, Stopping& stopping, const Armed& grace);
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
  std::uint32_t timers_ = 0;  // that were armed
};

}  // namespace ddprun::agent
