// What /metrics says: the status of this node as Prometheus text. Only of this node, since each node
// is asked for itself and none asks another one; what the whole job has in common (world size,
// round, restarts) every node says alike. Names and meanings are a promise: agent/README.md lists
// them. Pure.
#pragma once

#include <chrono>
#include <string>

#include "agent/status/node_status.h"
#include "agent/status/step_times.h"

namespace ddprun::agent {

struct MetricsLabels {  // of ddprun_info
  std::string run_id;
  std::string program;
  std::string version;
};

// `now`: when `status` was made.
std::string metrics_text(const NodeStatus& status, const MetricsLabels& labels,
                         StepTimes& step_times, std::chrono::steady_clock::time_point now);

}  // namespace ddprun::agent
