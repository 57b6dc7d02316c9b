// Performs the steps of a job's end (EndStep), which the core orders and limits. Nothing here
// blocks. Owned by the Supervisor; event loop only.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "agent/core/node_core.h"
#include "agent/supervisor/leader_port.h"
#include "agent/supervisor/observers.h"
#include "agent/supervisor/query_port.h"
#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

class JobEnd {
 public:
  struct Others {
    Observers& observers;
    QueryPort& queries;
    LeaderPort& leader;
  };
  // `remarks`: whole lines to print after the report of a job that did not succeed.
  JobEnd(const AgentParts& parts, const Others& others, std::function<std::string()> remarks,
         bool wants_summary);

  void begin(rdzv::JobOutcome outcome) { outcome_ = std::move(outcome); }
  // Calls `done` when the step is complete, perhaps at once, unless the next step has begun by then.
  void take(EndStep step, std::function<void()> done);

 private:
  std::string headline() const;
  void report(std::function<void()> done);

  const AgentParts parts_;
  const Others others_;
  const std::function<std::string()> remarks_;
  const bool wants_summary_;
  rdzv::JobOutcome outcome_;
  std::optional<EndStep> unfinished_;  // the step that has begun
  std::function<void()> done_;
  BlockingCalls copies_;
};

}  // namespace ddprun::agent
