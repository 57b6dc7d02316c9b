// Serves queries about the job and requests to stop or restart it: from ddpctl, from other nodes
// through the leader, from Prometheus and browsers. Owned by the Supervisor; event loop only. If a
// socket or port cannot be opened, the user is told, and the job goes on.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "agent/dashboard/metrics_server.h"
#include "agent/query/control_service.h"
#include "agent/supervisor/parts.h"

namespace ddprun::agent {

class QueryPort {
 public:
  // Functions, because the rooms below call them, and a test of a job's end needs none of the parts behind them.
  struct Access {
    JobQuery::Access job;
    std::function<int()> first_rank;  // this node's, in the current round
    ControlService::Requests requests;
  };
  QueryPort(const AgentParts& parts, Access access);

  void open();
  // For the requests of other nodes that the leader forwards.
  JobQuery& query() { return query_; }

  // ---- the end of the job; see ControlService
  bool has_followers() const { return control_.followers() > 0; }
  void finish(std::function<void()> done) { control_.finish(std::move(done)); }
  void over(std::string_view headline);

 private:
  void open_metrics(const rdzv::Endpoint& at);

  const AgentParts parts_;
  JobQuery query_;
  LogReader logs_;
  ControlService control_;
  std::unique_ptr<MetricsServer> metrics_;  // with --metrics-port
};

}  // namespace ddprun::agent
