// How this node is at one moment, as the parts of the supervisor have it, and what those who show the
// job make of it: the status line, systemd, Kubeflow, ddpctl. A value and pure functions.
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
  rdzv::RoundStart round;                               // the present one, or the last
  int running = 0;                                      // workers
  std::vector<std::optional<WorkerProgress>> progress;  // by local rank; none: it never said
  std::optional<StoreStatus> store;
  std::chrono::microseconds wall{};
};

Status status_of(const NodeSnapshot& node);

// Rank 0's agent speaks for all: none elsewhere, and before it has said a step.
std::optional<JobProgress> job_progress_of(const NodeSnapshot& node);

// What is not memory: the state, the progress of the workers that `status` lists, the store.
void fill(NodeStatus& status, const NodeSnapshot& node);

}  // namespace ddprun::agent
