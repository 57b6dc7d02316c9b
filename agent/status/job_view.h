// A running job, for everything that shows it: the control socket (ddpctl), the metrics and the
// live page. Event loop only; owned by the agent, and outlives its users. Asking for the whole job
// costs one message to every node; callers that ask while a request is under way share its answer.
// An interface, because tests and the simulated job show jobs without an agent.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/status/job_status.h"

namespace ddprun::agent {

struct JobIdentity {
  std::string run_id;
  std::string program;
  std::string version;    // of this ddprun
  std::string host = {};  // of this node
};

class JobView {
 public:
  virtual ~JobView() = default;

  // Before node_status(), where there is time: that then has what this node's GPUs say now. `done` is called soon, perhaps
  // before this returns.
  virtual void refresh(std::function<void()> done) { done(); }

  // Only this node, without delay.
  virtual NodeStatus node_status() const = 0;

  // Asks the leader, and every other node through it. `done` is called once, after this has
  // returned, within 100 ms: nodes that have not answered by then are in `late`.
  virtual void job_status(std::function<void(JobStatus)> done) = 0;

  // Calls `told` with each new event of this node: a line of --events with its end. Ends when the
  // returned object is destroyed, which may happen inside of the call.
  virtual std::shared_ptr<void> on_event(std::function<void(const std::string&)> told) = 0;
};

}  // namespace ddprun::agent
