// The agent's decisions about the workers of its node, as a pure state machine: what the leader
// says, what happens to the workers and to the agent itself comes in; what to do comes out, in
// order. The group_runner performs the actions and feeds the events back. No I/O, no clock, no
// threads.
//
//   Waiting ──RoundStart──▶ Running ──RoundStop, stop signal──▶ Stopping ──all ended──▶ Waiting
//      ▲                                                                                  │
//      └───────────────────────────── next RoundStart ────────────────────────────────────┘
//   any state ──JobEnd──▶ Ended (when workers are left: after they were stopped)
//
//   event            Waiting             Running                          Stopping
//   OpenStore        OpenRoundStore      -                                -
//   StoreResult      tell StoreOpened/   -                                -
//                    StoreNotOpened
//   RoundStart       StartWorkers        -                                -
//   RoundStop        tell RoundStopped   TERM, timer; RoundStopped        RoundStopped
//                                        when closed                      when closed
//   JobEnd           Finish              TERM, timer; Finish when closed  Finish when closed
//   WorkerEnded, 0   -                   last: tell WorkersDone           last: CloseRound
//   WorkerEnded, bad -                   tell WorkerFailed                remember; last: CloseRound
//   StopSignal       tell NodeLeaving    tell NodeLeaving; signal, timer  first: tell NodeLeaving;
//                                                                         second: KILL now
//   PreemptSignal    tell NodeLeaving    tell NodeLeaving; notice         -
//   TimerExpired     -                   -                                KILL; then tell NodeStuck
//   RoundClosed      -                   -                                what was awaited for it
//   In Ended nothing has an effect.
//
// Closing a round is an action of its own, because strangers that the workers left behind have to
// be ended too, which takes an event: only RoundClosed tells the leader RoundStopped, or ends the
// job. Events of another round than the current one are dropped in step().
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/round_messages.h"

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
struct TimerExpired {
  Round round{};
};
struct RoundClosed {  // the answer to the CloseRound action
  Round round{};
};
using GroupEvent =
    std::variant<rdzv::OpenStore, rdzv::RoundStart, rdzv::RoundStop, rdzv::JobEnd, StoreResult,
                 WorkerEnded, StopSignal, PreemptSignal, TimerExpired, RoundClosed>;

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
  Round round{};
  std::chrono::milliseconds after{};
  bool operator==(const ArmTimer&) const = default;
};
struct CloseRound {  // disarm the timer, end what workers left behind, close the store
  Round round{};
  bool operator==(const CloseRound&) const = default;
};
struct TellLeader {
  rdzv::ToLeader message;
  bool operator==(const TellLeader&) const = default;
};
struct Finish {  // nothing is left to do but to report and exit
  rdzv::JobOutcome outcome;
  bool operator==(const Finish&) const = default;
};
using GroupAction = std::variant<OpenRoundStore, StartWorkers, SignalWorker, AskToLeave, ArmTimer,
                                 CloseRound, TellLeader, Finish>;

struct GroupConfig {
  int local_world_size = 1;
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  std::chrono::milliseconds kill_timeout{10'000};      // from SIGKILL until we give up on a worker
};

class GroupCore {
 public:
  explicit GroupCore(GroupConfig config) : config_(config) {}

  std::vector<GroupAction> step(const GroupEvent& event);

  Round round() const { return round_; }
  bool is_stopping() const { return std::holds_alternative<Stopping>(state_); }

 private:
  using Out = std::vector<GroupAction>;

  struct Waiting {};
  struct Running {
    std::vector<bool> has_ended;  // by local rank
  };
  struct Stopping {
    std::vector<bool> has_ended;
    std::vector<rdzv::WorkerFailure> failures;  // of workers that ended meanwhile
    bool leader_asked = false;                  // RoundStop came: it awaits RoundStopped
    bool has_only_notice = false;               // of a preemption: workers leave in their own time
    bool is_leaving = false;                    // a stop signal came: the next one means now
    bool was_killed = false;                    // SIGKILL was sent
    bool is_closing = false;                    // CloseRound was asked for
    bool is_closed = false;                     // RoundClosed came
    std::optional<rdzv::JobOutcome> outcome;    // JobEnd came
  };
  struct Ended {};
  using State = std::variant<Waiting, Running, Stopping, Ended>;

  bool is_stale(const GroupEvent& event) const;

  void on(Out& out, const rdzv::OpenStore& open);
  void on(Out& out, const rdzv::RoundStart& start);
  void on(Out& out, const rdzv::RoundStop& stop);
  void on(Out& out, const rdzv::JobEnd& end);
  void on(Out& out, const StoreResult& result);
  void on(Out& out, const WorkerEnded& ended);
  void on(Out& out, const StopSignal& stop);
  void on(Out& out, const PreemptSignal& preempt);
  void on(Out& out, const TimerExpired& expired);
  void on(Out& out, const RoundClosed& closed);

  Stopping* begin_stopping();
  Stopping* stop_workers(Out& out, int signal);
  void signal_live_workers(Out& out, const std::vector<bool>& has_ended, int signal);
  void kill_workers(Out& out, Stopping& stopping);
  void go_on(Out& out);

  GroupConfig config_;
  State state_ = Waiting{};
  Round round_{};
};

}  // namespace ddprun::agent
