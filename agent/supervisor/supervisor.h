// The agent's shell: waits for an event, passes it to the core, performs the actions that the core
// returns. It owns the agent's io_context; everything here runs on the thread that calls run().
//
//   Workers ─▶ WorkerEvent ─┬─▶ Hangs, SlowRanks, Nans, Gpus, Observers
//                               ▼
//   LeaderPort, RoundStore, ─▶ post(): one queue ─▶ NodeCore ─▶ perform(action)
//   AgentSignals, UserRequests, timers, JobEnd
//
// The leader is in this process or on another node (rendezvous/leader/leader.h); both are handled
// alike. Its messages go through the same queue as all events, so NodeCore::step() never runs
// inside of another step.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/events/core_recorder.h"
#include "agent/health/health_check.h"
#include "agent/notice/notice_watch.h"
#include "agent/supervisor/agent_signals.h"
#include "agent/supervisor/gpus.h"
#include "agent/supervisor/hangs.h"
#include "agent/supervisor/job_end.h"
#include "agent/supervisor/leader_port.h"
#include "agent/supervisor/nans.h"
#include "agent/supervisor/node_memory.h"
#include "agent/supervisor/node_report.h"
#include "agent/supervisor/observers.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/query_port.h"
#include "agent/supervisor/round_store.h"
#include "agent/supervisor/slow_ranks.h"
#include "agent/supervisor/user_requests.h"
#include "agent/supervisor/workers.h"
#include "rendezvous/common/loop/run_to_completion.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class Supervisor {
 public:
  explicit Supervisor(const Job& job);
  ~Supervisor();

  // Returns the exit code of the agent.
  int run();

 private:
  // ---- before there is a leader
  Result<void> prepare();
  void find_leader();
  void cannot_run(const Error& error);

  void post(NodeEvent event) { events_.post(std::move(event)); }
  void step(const NodeEvent& event);
  void on_worker_event(const WorkerEvent& event);

  // ---- the actions
  void perform(const OpenRoundStore& action) {
    post(store_.open(action.round, leader_.local_address()));
  }
  void perform(const StartWorkers& action);
  void perform(const SignalWorker& action) { workers_.signal(action.local_rank, action.signal); }
  void perform(const AskToLeave& action) {
    workers_.ask_to_leave(action.local_rank, action.signal);
  }
  void perform(const HoldWorkers& action) { workers_.hold_at_boundary(action.until); }
  void perform(const ParkWorkers& action) { workers_.park(action.after_step); }
  void perform(const LetWorkersLeave& action) { workers_.let_leave(action.boundary); }
  void perform(const TellGroupBroken& action) { workers_.tell_group_broken(action.rank); }
  void perform(const ArmTimer& action) {
    timer_.arm(action.after, [this, timer = action.timer] { post(TimerExpired{timer}); });
  }
  void perform(const GraceOver& action);
  void perform(const LookAtWorkers& action) {
    post(WorkersSeen{action.round, workers_.view().look(action.signal)});
  }
  void perform(const WaitForSaving& action);
  void perform(const TakeStacks&) { workers_.take_stacks(); }
  void perform(const CloseRound& action) {
    timer_.cancel();
    late_regroup_.cancel();
    late_start_.cancel();
    workers_.close(action.spares_orphans);
  }
  void perform(const CloseStore&) { store_.close(); }
  void perform(const TellLeader& action);
  void perform(const Join& action) {
    health_.before_restart([this, action] {
      leader_.join(action.last_round);
      if (!unfit_.empty()) leader_.tell(rdzv::NodeUnfit{{unfit_}});  // the leader may be new
    });
  }
  void perform(const Announce& action);
  void perform(const Finish& action);
  void perform(const TakeStep& action);
  void perform(const Replace& action) {
    store_.begin_generation(action.generation);
    workers_.replace(action);
    late_regroup_.arm(kLateRegroup, [this, late = RegroupIsLate{action.round, action.generation}] {
      post(late);
    });
  }
  void perform(const ShowLate& action);
  void perform(const ShowStarting& action);
  void await_late_start(std::chrono::seconds after);
  void perform(const Exit&) {}  // core_.has_ended(): run() returns
  void announce_wait(const rdzv::WaitForNodes& wait);

  // ---- the health of this node
  HealthCheck::Hooks health_hooks();
  void cannot_join(const std::string& sentence);
  // The job should go on without this node.
  void node_is_unfit(const std::string& sentence);
  void node_is_fit_again();
  void remember(const std::string& sentence);

  // ---- what the parts ask for
  QueryPort::Access query_access();
  NodeStatus node_status(std::size_t events_max) const;

  const Job& job_;
  std::optional<Keeper> keeper_;  // once it is started; the last one here to end
  boost::asio::io_context io_{1};
  Console console_;
  Log log_;
  Output output_;
  const AgentParts parts_;
  const NodeReport report_;
  Observers observers_;
  std::unique_ptr<CoreRecorder> recorder_;  // with --record
  NodeMemory memory_;
  NodeCore core_;
  RunToCompletion<NodeEvent> events_;
  AgentSignals signals_;
  Workers workers_;
  RoundStore store_;
  QueryPort queries_;
  LeaderPort leader_;
  UserRequests requests_;
  NoticeWatch notices_;
  HealthCheck health_;
  std::string unfit_;           // what its health check says against this node; empty: nothing
  std::string health_remarks_;  // for the report of a failure
  JobEnd end_;
  Hangs hangs_;
  SlowRanks slow_ranks_;
  Nans nans_;
  Gpus gpus_;

  Timer timer_;  // the core's
  static constexpr std::chrono::seconds kLateRegroup{10};
  Timer late_regroup_;
  static constexpr std::chrono::seconds kLateStart{10};  // then each time for twice as long
  Timer late_start_;
  std::chrono::seconds late_start_after_{};  // how long the last wait was

  bool was_told_to_wait_ = false;
  std::optional<rdzv::JobOutcome> outcome_;
};

}  // namespace ddprun::agent
