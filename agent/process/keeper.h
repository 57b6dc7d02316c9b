// A tiny process that outlives the agent by a moment: when the agent vanishes (SIGKILL, out of
// memory) it kills every process group that a worker had registered, so that no worker, and no
// child of one that stayed in its group, is left behind, and whoever is in the workers' control
// group, where there is one; then it removes that group and the files that nobody else would.
//
// How: agent and keeper share a table of process groups, an entry for each local rank, and a pipe
// whose writing end the agent alone holds (it is close-on-exec). The keeper sleeps in a read of
// that pipe; end of file means that the agent is gone. A worker enters itself between fork and
// exec, so there is no moment in which it runs unknown; the agent takes a group off the table
// before it reaps the group's leader, so the number cannot have been given to somebody else. Neither
// wakes the keeper.
//
// The agent makes it first, before it has a thread. When the keeper itself is killed, the agent
// learns of it as of any child and makes a new one on the same table. Owner and only caller: the
// agent's event loop thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <string_view>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

class Keeper {
 public:
  // Where a worker enters itself; 0: no group. Lock-free, hence usable between fork and exec and
  // from another process.
  using Slot = std::atomic<pid_t>;
  static_assert(Slot::is_always_lock_free);

  // Forks a keeper with room for `slots` groups, and a file for each.
  static Result<Keeper> start(std::size_t slots);

  Keeper(Keeper&& other) noexcept;
  Keeper& operator=(Keeper&& other) noexcept;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();  // lets the keeper go (it kills and removes what is still registered) and reaps it

  pid_t pid() const { return pid_; }

  Slot& slot(std::size_t index) { return entries_[index].group; }

  // A file that goes with the agent, if the worker of that slot has made it; an absolute path, or
  // empty for none. It replaces the one named before for that slot.
  void set_file(std::size_t index, std::string_view path) { set_path(index, path); }

  // The workers' control group (agent/process/control_group.h), which goes with the agent too; to be named
  // before it is made. Empty: there is none.
  void set_control_group(std::string_view path) { set_path(count_, path); }

  // It does its work now, and ends; the destructor waits for that. Nothing is registered any more.
  void let_go();

  // Reaps a keeper that has died and says so, once; then replace() is due.
  bool has_died();

  // Forks another keeper on the same table.
  Result<void> replace();

 private:
  // A page each: only those that are used cost memory. One for each slot, and a last one whose file
  // is the control group.
  struct Entry {
    Slot group;
    char file[4096 - sizeof(Slot)];
  };

  Keeper(Entry* entries, std::size_t count) : entries_(entries), count_(count) {}
  [[noreturn]] void keep(int pipe_fd) const;
  void set_path(std::size_t index, std::string_view path);
  void dismiss();
  void swap(Keeper& other) noexcept;

  Entry* entries_ = nullptr;
  std::size_t count_ = 0;
  pid_t pid_ = -1;
  int pipe_fd_ = -1;
};

}  // namespace ddprun::agent
