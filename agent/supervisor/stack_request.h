// What the workers' threads are doing, for somebody who asks (ddpctl stacks): one answer at a time, within
// kStackLimit, from whatever could be read by then. Owned by NodeStacks; event loop only.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/process/stack_dump.h"
#include "agent/query/stack_query.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class StackRequest {
 public:
  using Done = std::function<void(std::vector<WorkerStacks>)>;

  StackRequest(boost::asio::io_context& io, const Environment& environment, std::string host);

  // `done` is called once, after this has returned. A worker with pid 0 does not run.
  void take(std::vector<StackDump::Worker> workers, StackDump::Threads threads, Done done);
  // Answers with what there is.
  void finish();
  bool is_busy() const { return dump_ != nullptr; }
  bool owns(pid_t pid) const { return dump_ && dump_->owns(pid); }

 private:
  boost::asio::io_context& io_;
  const Environment& environment_;
  const std::string host_;
  std::unique_ptr<StackDump> dump_;  // while an answer is made
  std::vector<WorkerStacks> found_;  // those without a process
  std::size_t asked_ = 0;
  Done done_;
  Timer limit_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
