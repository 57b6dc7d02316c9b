// The state of this node at one moment, collected by the supervisor, and its conversion for those
// who display it: the status line, systemd, Kubeflow, ddpctl. A value and pure functions.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "agent/notify/kubeflow_status.h"
#include "agent/output/status_line.h"
#include "agent/status/node_status.h"
#include "rendezvous/common/worker_abi/worker_progress.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

struct NodeSnapshot {
  NodeState state = NodeState::kLooking;
  bool is_waiting = false;  // for a round to begin
  bool is_stopping = false;
  bool leads = false;
  rdzv::RoundStart round;                               // the current one, or the last
  int running = 0;                                      // number of workers that run
  std::vector<std::optional<WorkerProgress>> progress;  // by local rank; none: not reported
  std::optional<StoreStatus> store;
  std::chrono::microseconds wall{};
};

Status status_of(const NodeSnapshot& node);

// The progress of rank 0 stands for the job. None on other nodes, and before rank 0 reports a step.
std::optional<JobProgress> job_progress_of(const NodeSnapshot& node);

// Fills in what JobHistory does not keep: the state, the store, and the progress of the workers
// that `status` lists.
void fill(NodeStatus& status, const NodeSnapshot& node);

}  // namespace ddprun::agent
