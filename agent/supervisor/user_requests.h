// What a user asks for with ddpctl at this agent: to stop the job, to restart its round, to replace a worker. The leader
// decides about the job; what concerns this node alone goes to its core or its workers. Owned by the Supervisor; event
// loop only. `by`: the request in words, "ddpctl stop (root, pid 4711)".
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "agent/core/node_core.h"
#include "agent/events/event_log.h"
#include "agent/supervisor/leader_port.h"
#include "agent/supervisor/node_report.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/workers.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

class UserRequests {
 public:
  struct Others {
    const NodeCore& core;
    const NodeReport& node;
    LeaderPort& leader;
    Workers& workers;
    EventLog& events;
  };
  using Post = std::function<void(NodeEvent)>;  // StopSignal
  UserRequests(const AgentParts& parts, const Others& others, Post post)
      : parts_(parts), others_(others), post_(std::move(post)) {}

  Result<void> stop(const std::string& by);
  // The round that will end.
  Result<Round> restart(const std::string& by);
  // Kills the worker with this rank, so that it is replaced in place; nothing: it is of another node.
  std::optional<Result<void>> replace(int rank, const std::string& by);

  Result<void> drain(const rdzv::DrainAsked& asked);

  // By which request this node stops, where the leader was not told; empty: by none.
  const std::string& stop_asked_by() const { return stop_asked_by_; }

 private:
  const AgentParts parts_;
  const Others others_;
  const Post post_;
  std::string stop_asked_by_;
};

}  // namespace ddprun::agent
