#include "agent/supervisor/node_report.h"

#include <unistd.h>

#include <chrono>
#include <tuple>
#include <utility>

#include "agent/core/leader_config.h"

namespace ddprun::agent {

NodeState NodeReport::state() const {
  const NodeCore& core = sources_.core;
  if (core.is_over()) return NodeState::kEnded;
  if (sources_.leader.leader() == nullptr) return NodeState::kLooking;
  if (core.is_waiting()) return NodeState::kWaiting;
  return core.is_stopping() ? NodeState::kStopping : NodeState::kRunning;
}

const rdzv::RoundStart* NodeReport::running_round() const {
  return sources_.core.is_running() ? &sources_.workers.view().round() : nullptr;
}

NodeSnapshot NodeReport::snapshot() const {
  const WorkerView& workers = sources_.workers.view();
  NodeSnapshot node;
  node.state = state();
  node.leads = sources_.leader.is_here();
  node.round = workers.round();
  node.running = workers.running();
  for (int local_rank = 0; local_rank < workers.count(); ++local_rank) {
    node.progress.push_back(workers.progress(local_rank));
  }
  node.store = sources_.store.status();
  node.standbys = sources_.workers.standbys();
  node.replacement = sources_.workers.replacement();
  node.wall = std::chrono::duration_cast<std::chrono::microseconds>(
      sources_.observers.events.times().wall(std::chrono::steady_clock::now()));
  return node;
}

NodeStatus NodeReport::status(std::size_t events_max) const {
  WorkerView& workers = sources_.workers.view();
  NodeStatus status;
  sources_.observers.events.fill(status, events_max);
  status.host = host_;
  status.agent_pid = ::getpid();
  fill(status, snapshot());
  for (WorkerStatus& worker : status.workers) {
    worker.device = device_of(job_, worker.local_rank);
    std::tie(worker.held, worker.held_for) = workers.held(worker.local_rank);
    worker.calls = workers.calls(worker.local_rank);
    const auto threads = workers.threads(worker.local_rank);
    worker.keeps_record = threads.count > 0;
    worker.all_wait = threads.all_wait();
    worker.progress = with_calls(std::move(worker.progress), worker.calls);
  }
  return status;
}

}  // namespace ddprun::agent
