// The state of this node at one moment, collected by the supervisor, for those who display it: the
// status line, systemd, Kubeflow, ddpctl. A value.
#pragma once

#include "agent/status/node_status.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

struct NodeSnapshot {
  NodeState state = NodeState::kLooking;
  bool leads = false;
  rdzv::RoundStart round;                               // the current one, or the last
  int running = 0;                                      // number of workers that run
  std::vector<std::optional<WorkerProgress>> progress;  // by local rank; none: not reported
  std::optional<StoreStatus> store;
  std::chrono::microseconds wall{};
};

// Fills in what JobHistory does not keep: the state, the store, and the progress of the workers
// that `status` lists.
inline void fill(NodeStatus& status, const NodeSnapshot& node) {
  status.state = node.state;
  status.leads = node.leads;
  status.wall = node.wall;
  status.store = node.store;
  for (WorkerStatus& worker : status.workers) {
    worker.progress = node.progress.at(static_cast<std::size_t>(worker.local_rank));
  }
}

}  // namespace ddprun::agent
