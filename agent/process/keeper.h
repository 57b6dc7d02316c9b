// A small process that cleans up when the agent dies without doing so (SIGKILL, out of memory): it
// kills every registered process group of a worker and every member of the workers' control group,
// then removes that group and the workers' temporary files.
//
// Both share a table with an entry for each local rank. The keeper reads a pipe whose writing end
// only the agent holds: its end means that the agent is gone. A worker enters its group between
// fork and exec, so none runs unregistered; the agent clears the entry before it reaps the group's
// leader, so the number cannot belong to another process yet. Started before the agent has a thread;
// event loop thread only.
//
// With a MemoryOffer (--keep-memory) it then holds the node's memory for snapshots, until the next agent of the
// job takes it or its time is over, unless the job has succeeded.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "agent/process/memory_offer.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class Keeper {
 public:
  // Process group of a worker; 0: none. For use between fork and exec and from another process.
  using Slot = std::atomic<pid_t>;
  static_assert(Slot::is_always_lock_free);

  // Forks a keeper with room for `slots` groups, and a file for each.
  static Result<Keeper> start(std::size_t slots, std::optional<MemoryOffer> offer = std::nullopt);

  using Clock = std::chrono::steady_clock;  // read by a system call only

  Keeper(Keeper&&) = default;
  // The keeper kills and removes what is still registered, and is reaped, unless it holds the memory. This waits for
  // it, but not for ever: the files that it removes may be on a file server that does not answer.
  ~Keeper();

  pid_t pid() const { return pid_; }

  Slot& slot(std::size_t index) { return entries_[index].group; }

  // A file of the worker in that slot, which the keeper removes, with what is left of it if it is not finished; an
  // absolute path, or empty.
  void set_file(std::size_t index, std::string_view path) { set_path(index, path); }

  // Paths of the workers' control group, and of the one that follows it; empty: none. Set a path
  // before its group is made.
  void set_control_group(std::string_view path) { set_path(count_, path); }
  void set_next_control_group(std::string_view path) { set_path(count_ + 1, path); }

  // The keeper kills and removes what is still registered, and exits, unless it holds the memory.
  void let_go();

  // The job has succeeded: nobody will need the memory. Call it before let_go().
  void drop_memory();

  // Reaps the keeper if it has ended. Its end, once, if it was not let go: if a signal has killed it,
  // the caller must call replace(); else its code is the errno of the call without which it cannot
  // wait, and a new keeper would end likewise.
  std::optional<ExitStatus> died();

  // Forks another keeper on the same table.
  Result<void> replace();

 private:
  // Each entry is one page, so unused entries cost no memory. There is one for each slot, and two
  // more whose `file` is the path of a control group.
  struct Entry {
    Slot group;
    char file[4096 - sizeof(Slot)];
  };

  struct Unmap {
    std::size_t bytes = 0;
    void operator()(Entry* entries) const;
  };

  static constexpr std::size_t kControlGroups = 2;

  Keeper(Entry* entries, std::size_t count)
      : entries_(entries, Unmap{(count + kControlGroups) * sizeof(Entry)}), count_(count) {}
  [[noreturn]] void keep(int pipe_fd, int cleaned_fd) const;
  void tell_to_drop();
  void set_path(std::size_t index, std::string_view path);
  bool has_cleaned_by(Clock::time_point until) const;

  std::unique_ptr<Entry[], Unmap> entries_;  // null: moved from
  std::size_t count_;
  pid_t pid_ = -1;
  rdzv::UniqueFd pipe_;
  rdzv::UniqueFd cleaned_;              // is at its end when the keeper has killed and removed all
  std::unique_ptr<MemoryOffer> offer_;  // null: there is no such memory
  bool is_memory_dropped_ = false;
};

}  // namespace ddprun::agent
