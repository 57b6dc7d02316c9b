// The agent's children that are not workers: its keeper, which is replaced if somebody kills it,
// and orphans, which are killed when a round closes, or live on after the job's success: the processes left in the
// workers' control group; without such a group, those of agent/process/orphans.h. Standbys wait in the control
// group of the next round already, because entering a group takes the kernel milliseconds.
//
// Owned by Workers; the keeper is the Supervisor's, because it ends after this. Event loop
// thread only. Never reaps a child that has an owner (a worker, a stack dump), who would wait for its
// end for ever: `is_owned` names those.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/log.h"
#include "agent/process/control_group.h"
#include "agent/process/keeper.h"
#include "agent/process/left_processes.h"
#include "agent/process/orphans.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class ChildReaper {
 public:
  struct Hooks {
    std::function<bool(pid_t)> is_owned;
    std::function<void(pid_t)> on_keeper_replaced;
  };
  ChildReaper(boost::asio::io_context& io, const std::string& agent_id,
              std::optional<Keeper>& keeper, Log log, Hooks hooks);

  // Call it before the agent has another thread or child. From then on this process adopts the
  // workers' orphans. The keeper gets that many slots: one for each worker, then those of standbys.
  // `own_groups`: cgroup::own_groups().
  Result<void> start(std::size_t slots, std::optional<MemoryOffer> offer,
                     const std::string& own_groups);

  // After start(): the keeper's slot where a worker enters its process group, and the temporary
  // error file that the keeper removes when the agent ends.
  std::atomic<pid_t>* keeper_slot(std::size_t worker) {
    return keeper_ ? &keeper_->slot(worker) : nullptr;
  }
  void keep_error_file(std::size_t worker, std::string_view file) {
    if (keeper_) keeper_->set_file(worker, file);
  }

  // Descriptor of the control group in which workers start; -1: there is none.
  int control_group() const { return are_all_in_group_ ? group_->directory() : -1; }
  // Where a process enters the control group of the next round, by writing 0; none if there is no
  // such group.
  rdzv::UniqueFd next_control_group();
  // False: it could not be moved, or there is no such group.
  bool move_into_control_group(pid_t pid);
  // A worker could not be started in it, so the group does not contain all workers any more.
  void leave_control_group();

  // Removes the control groups that killed agents left. Call it after the workers were started, so that
  // none of them waits for it.
  void remove_abandoned_groups() const {
    if (group_) group_->remove_abandoned_beside();
  }

  // Call it after reaping a child of one's own: reaping may have stopped at it (see reap_orphans).
  void reap();

  // What is to become of the orphans of a round. `groups`: the process groups that its workers had.
  struct Orphanage {
    std::set<pid_t> groups;
    bool is_spared = false;  // what left these process groups lives on
  };
  // Those that do not end within two seconds are logged and left alone. `done` may come at once.
  void end_orphans(Orphanage orphanage, std::function<void()> done);

  // The keeper ends, beside the rest of the job's end; it kills and removes only what cannot be removed here.
  // No worker may be started after this.
  void let_keeper_go();
  // The keeper will not hold the memory that it was offered.
  void drop_memory() {
    if (keeper_) keeper_->drop_memory();
  }

 private:
  void await();
  void replace_keeper(const ExitStatus& died);
  bool is_known(pid_t pid) const;
  void make_control_group(const std::string& own_groups);
  void follow_control_group();
  void renew_control_group();
  void end_what_is_left();
  void look_again(bool soon);
  void kill_orphans(const Orphans& orphans);
  void spare_orphans(const Orphans& orphans);
  void finish_orphans(bool are_all_gone);
  void say_what_does_not_end(const std::vector<pid_t>& pids) const;
  std::vector<pid_t> with_members(std::vector<pid_t> pids) const;
  bool are_told(const std::set<pid_t>& pids, Log::Level level, const std::string& words);
  void let_out_of_group();

  boost::asio::signal_set signal_;
  Timer timer_;
  std::optional<Keeper>& keeper_;
  const Log log_;
  const Hooks hooks_;
  EnvironmentLooks looks_;
  std::optional<ControlGroup> next_group_;
  std::optional<ControlGroup> group_;  // the keeper removes what is left of both
  bool are_all_in_group_ = false;
  bool was_group_killed_ = false;
  std::function<void()> done_;  // while orphans are being ended
  Orphanage orphanage_;
  ProcessNames names_;
  std::set<pid_t> told_;  // whose names were said
  bool are_names_coming_ = false;
  std::chrono::steady_clock::time_point until_;
  std::chrono::milliseconds pause_{};
  const Lifetime lifetime_;
};

}  // namespace ddprun::agent
