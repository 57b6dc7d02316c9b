// What there is to see of a running job, for those who show it: the control socket (ddpctl), the
// metrics and the live page. Event loop only; the agent owns it, and it outlives who uses it.
//
// The mistake to avoid: asking for the whole job more often than somebody looks. It costs one
// message to every node; callers that ask while an answer is under way share it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agent/status/job_status.h"

namespace ddprun::agent {

class JobView {
 public:
  JobView() = default;
  virtual ~JobView() = default;
  JobView(const JobView&) = delete;
  JobView& operator=(const JobView&) = delete;

  // This node alone, at once.
  virtual NodeStatus node_status() const = 0;

  // Asks the leader, and every other node through it. `done` is called once, after this has
  // returned, and no later than 100 ms: who has not answered by then is in `late`.
  virtual void job_status(std::function<void(JobStatus)> done) = 0;

  // Each event of this node from now on: a line of --events with its end. As long as what is
  // returned lives; it may be let go of from within the call.
  virtual std::shared_ptr<void> on_event(std::function<void(const std::string&)> told) = 0;
};

}  // namespace ddprun::agent
