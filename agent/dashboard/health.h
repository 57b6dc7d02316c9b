// The answers to probes, as kubelet asks them: /healthz and /livez. Pure.
#pragma once

#include <string>

#include "agent/status/node_status.h"

namespace ddprun::agent {

struct Health {
  // A new start may help if not: ranks hang. The agent waits for other nodes or restarts: alive.
  bool is_alive = true;
  bool is_well = true;   // alive, and a round runs
  std::string sentence;  // why not; or what runs
};

Health health_of(const NodeStatus& node);

}  // namespace ddprun::agent
