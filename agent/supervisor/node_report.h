// What this agent tells of its node: a snapshot for the status line, systemd and Kubeflow, and the whole status for
// ddpctl, other nodes, and the watch for hangs. It collects this from the parts of the Supervisor, which owns it, and has
// no state. Event loop only.
#pragma once

#include <cstddef>

#include "agent/core/node_core.h"
#include "agent/status/node_status.h"
#include "agent/supervisor/leader_port.h"
#include "agent/supervisor/observers.h"
#include "agent/supervisor/round_store.h"
#include "agent/supervisor/workers.h"

namespace ddprun::agent {

class NodeReport {
 public:
  // Everything here outlives this object. It need not be constructed yet.
  struct Sources {
    const NodeCore& core;
    const LeaderPort& leader;
    Workers& workers;
    const RoundStore& store;
    const Observers& observers;
  };
  NodeReport(const Job& job, const std::string& host, const Sources& sources)
      : job_(job), host_(host), sources_(sources) {}

  NodeState state() const;
  // The round that runs on this node; none: it waits, stops, or has ended.
  const rdzv::RoundStart* running_round() const;
  NodeSnapshot snapshot() const;
  // `events_max`: how many lines of --events. What the node knows of hangs is in Hangs::fill().
  NodeStatus status(std::size_t events_max) const;

 private:
  const Job& job_;
  const std::string& host_;
  const Sources sources_;
};

}  // namespace ddprun::agent
