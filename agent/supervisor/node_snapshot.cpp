#include "agent/supervisor/node_snapshot.h"

namespace ddprun::agent {

Status status_of(const NodeSnapshot& node) {
  Status status;
  status.round = node.round.round;
  status.workers = static_cast<int>(node.progress.size());
  status.running = node.running;
  status.is_waiting = node.is_waiting;
  status.is_stopping = node.is_stopping;
  status.wall = std::chrono::duration_cast<std::chrono::seconds>(node.wall);
  status.restarts = node.round.restarts;
  status.max_restarts = node.round.max_restarts;
  std::vector<WorkerProgress> known;
  for (const auto& each : node.progress) {
    if (each) known.push_back(*each);
  }
  status.progress = progress_text(known);
  return status;
}

std::optional<JobProgress> job_progress_of(const NodeSnapshot& node) {
  if (node.round.rank_offset != 0 || node.progress.empty()) return std::nullopt;
  const auto& progress = node.progress.front();
  if (!progress || !progress->step) return std::nullopt;
  return JobProgress{.step = *progress->step,
                     .total_steps = progress->total_steps,
                     .round = node.round.round,
                     .restarts = node.round.restarts,
                     .world_size = node.round.world_size,
                     .values = progress->values};
}

void fill(NodeStatus& status, const NodeSnapshot& node) {
  status.state = node.state;
  status.leads = node.leads;
  status.wall = node.wall;
  status.store = node.store;
  for (WorkerStatus& worker : status.workers) {
    worker.progress = node.progress.at(static_cast<std::size_t>(worker.local_rank));
  }
}

}  // namespace ddprun::agent
