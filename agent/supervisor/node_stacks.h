// The stacks of this node's workers: of those that are about to be killed because their grace period is over, since
// these stacks show why they hang; and of those that a user or another agent asks for. Owned by Workers; event
// loop only.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/stack_dump.h"
#include "agent/query/stack_query.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/stack_request.h"
#include "agent/supervisor/stack_samples.h"
#include "agent/supervisor/worker_view.h"

namespace ddprun::agent {

class NodeStacks {
 public:
  NodeStacks(const AgentParts& parts, const WorkerView& workers);

  // Prints what the previous round has left in text().
  void round_begins();
  // All workers have ended: answers what is still asked for, with what there is.
  void round_closes();

  // ---- before workers are killed

  // Takes the stacks of all workers that run. `taken` is called once, from the loop, unless finish() comes before.
  void take(std::function<void()> taken);
  // A worker is about to be killed: reports the stacks that were taken so far, and gives up the rest.
  void finish();
  // Stacks of killed workers that have no log folder, to print after the report.
  const std::string& text() const { return text_; }

  // ---- when asked

  // What the threads of these workers do, or of all. `done` is called once, after this has returned.
  void show(const StackQuery& question, StackRequest::Done done);

  // What the main threads of these workers do, looked at for some seconds. It gives way to the others here.
  void sample(const std::vector<int>& ranks, StackSamples::Done done);

  // The child is a debugger, which must not be reaped as an orphan.
  bool owns(pid_t child) const;

 private:
  const AgentParts parts_;
  const WorkerView& workers_;
  std::unique_ptr<StackDump> dump_;  // while stacks are taken before a kill
  std::string text_;
  StackRequest request_;
  StackSamples samples_;
};

}  // namespace ddprun::agent
