// The control group (cgroup v2) of an agent's workers, a child of the agent's own group, with no
// controller enabled: the agent's limits and accounting apply. A process cannot leave it by
// clearing its environment, making a new session or losing its parent. The agent changes no group
// that it did not make, except groups below this one. If the agent is killed, the keeper kills the
// members and removes the group. Event loop thread only.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// "<pid>-<nanoseconds since boot>": no other process of this machine has it.
std::string name_of_this_process();

class ControlGroup {
 public:
  // Path for a new group of this process, with a unique name. Fails if no cgroup v2 hierarchy is
  // mounted, or if the agent's own group enables controllers for its children. `own_groups`:
  // cgroup::own_groups(). `root` is for tests: a folder that contains a /proc.
  static Result<std::string> new_path(const std::string& own_groups, const std::string& root = "");

  static Result<ControlGroup> make(const std::string& path);

  ControlGroup(ControlGroup&& other) noexcept;
  ControlGroup& operator=(ControlGroup&&) = delete;
  ~ControlGroup() { remove(); }

  const std::string& path() const { return path_; }
  // For CLONE_INTO_CGROUP.
  int directory() const { return directory_.get(); }

  // A living process is in it, or in a group below it.
  bool is_populated() const;
  void kill() const;
  std::vector<pid_t> members() const;
  // Moves a member to the agent's own group, the one above. False: it has ended, or the kernel refuses.
  bool let_out(pid_t member) const;
  // Removes empty groups below it, which killed agents left behind.
  void tidy() const;
  // Removes the group; false: it is not empty. Nothing may be asked of it afterwards.
  bool remove();
  // Removes empty groups with the same parent whose agent and keeper were both killed.
  void remove_abandoned_beside() const;

 private:
  ControlGroup(std::string path, rdzv::UniqueFd directory, rdzv::UniqueFd events)
      : path_(std::move(path)), directory_(std::move(directory)), events_(std::move(events)) {}

  std::string path_;
  rdzv::UniqueFd directory_;
  rdzv::UniqueFd events_;
};

// For the keeper, with system calls only: kill the members of the group at `path`; wait until it is
// empty, at most `patience`, and remove it. Nothing happens if there is no such group.
void kill_control_group(const char* path);
void remove_control_group(const char* path, std::chrono::milliseconds patience);

}  // namespace ddprun::agent
