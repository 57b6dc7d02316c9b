// The agent's children that are no workers: its keeper, which is replaced when somebody kills it, and
// orphans, which workers left behind and which are ended when a round closes. Orphans are those
// who are left in the workers' control group; where there can be none, those children of the agent
// whose environment says so (agent/process/orphans.h).
//
// Owned by the WorkerGroup; event loop thread only. The mistake to avoid: reaping a child that has an
// owner (a worker, a stack dump), who then waits for ever; hence `is_owned`.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "agent/loop/timer.h"
#include "agent/process/control_group.h"
#include "agent/process/keeper.h"
#include "agent/process/orphans.h"
#include "rendezvous/common/lifetime.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

class ChildReaper {
 public:
  struct Hooks {
    std::function<bool(pid_t)> is_owned;
    std::function<void(pid_t)> on_keeper_replaced;
    std::function<void(std::string_view)> debug;
    std::function<void(std::string_view)> warn;
    std::function<void(std::string_view)> error;
  };
  // `agent_id` marks this job's own (kAgentVariable).
  ChildReaper(boost::asio::io_context& io, const std::string& agent_id, Hooks hooks);

  // Before the agent has another thread or child. Orphans of workers come to this process from here
  // on, and the keeper has room for `workers`.
  Result<void> start(std::size_t workers);

  // For the keeper, once it has been started: where a worker enters its group, and its temporary error
  // file, which is removed with the agent.
  std::atomic<pid_t>* keeper_slot(std::size_t worker) {
    return keeper_ ? &keeper_->slot(worker) : nullptr;
  }
  void keep_error_file(std::size_t worker, std::string_view file) {
    if (keeper_) keeper_->set_file(worker, file);
  }

  // Where workers start: the folder of their control group; -1: there is none.
  int control_group() const { return are_all_in_group_ ? group_->directory() : -1; }
  // A worker could not be started there, so that the group does not know of all any more.
  void leave_control_group();

  // For the owner of a child that has just reaped it: others may have waited behind it.
  void reap();

  // Kills orphans until there is none left; names and leaves behind what does not end within a
  // bounded time. `done` may be called from here.
  void end_orphans(std::function<void()> done);

  // The agent ends: so does its keeper, beside it. The event loop must not run any more.
  void let_keeper_go() {
    if (keeper_) keeper_->let_go();
  }

 private:
  void await();
  bool is_known(pid_t pid) const;
  void replace_keeper();
  void make_control_group();
  void renew_control_group();
  void kill_orphans();
  Orphans orphans_outside();

  boost::asio::signal_set signal_;
  Timer timer_;
  const Hooks hooks_;
  EnvironmentLooks looks_;
  std::optional<Keeper> keeper_;
  std::optional<ControlGroup> group_;  // the keeper removes it, too, where it is let go before
  bool are_all_in_group_ = false;
  bool was_group_killed_ = false;
  std::function<void()> done_;  // while orphans are being ended
  std::chrono::steady_clock::time_point until_;
  std::chrono::milliseconds pause_{};
  const rdzv::Lifetime lifetime_;
};

}  // namespace ddprun::agent
