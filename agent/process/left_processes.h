// Processes that workers leave behind, in their process groups or outside of them (setsid, setpgid), and how messages name
// such processes. Event loop thread only.
#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/common/loop/blocking_calls.h"

namespace ddprun::agent {

// The living children of this process that are in the leader's process group, without the leader. The agent adopts what a worker that has
// ended leaves behind; descendants of what it adopts are not looked for.
std::vector<pid_t> rest_of_group(pid_t leader);

// The processes that live, by whether they are in one of the process groups.
struct ByGroup {
  std::set<pid_t> inside;
  std::set<pid_t> outside;
};
ByGroup by_group(const std::vector<pid_t>& pids, const std::set<pid_t>& groups);

// The processes whose parent is not in the set.
std::vector<pid_t> roots_of(const std::set<pid_t>& pids);

// "71 (tensorboard --logdir runs), 72 (sleep 9)". Command lines are cut, and only the first few processes are named.
std::string in_words(const std::vector<pid_t>& pids, const std::vector<std::string>& commands);

// Reads command lines on a thread, because a process that hangs in the kernel may hold the lock that this needs.
class ProcessNames {
 public:
  explicit ProcessNames(boost::asio::any_io_executor executor) : executor_(std::move(executor)) {}

  // `done` gets in_words() of these processes, never from within look_up(), nor after this object is destroyed. One call
  // at a time.
  void look_up(std::vector<pid_t> pids, std::function<void(const std::string&)> done);

 private:
  const boost::asio::any_io_executor executor_;
  std::unique_ptr<BlockingCalls> calls_;  // replaced if a call hangs
};

}  // namespace ddprun::agent
