// The control group of an agent's workers (version 2), below the one that the agent is in: who is in
// it cannot leave it by clearing its environment, making a session of its own or losing its
// parents. No controller is enabled there, so that limits and accounts stay those of the agent's
// group; nothing that the agent did not make is touched, but groups below this one.
//
// The agent makes it; the keeper ends and removes it when the agent cannot. Owner and only caller:
// the agent's event loop thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class ControlGroup {
 public:
  // Where a new group for this process can be, with a name that no other agent has. An error where
  // there is no hierarchy of version 2, or the agent's own group gives its controllers to groups
  // below. `root` is for tests: a tree with /proc.
  static Result<std::string> new_path(const std::string& root = "");

  // Also removes empty groups beside it whose agents were killed together with their keepers.
  static Result<ControlGroup> make(const std::string& path);

  ControlGroup(ControlGroup&& other) noexcept;
  ControlGroup& operator=(ControlGroup&&) = delete;
  ~ControlGroup();  // removes it, if nobody is in it any more

  // For CLONE_INTO_CGROUP.
  int directory() const { return directory_.get(); }

  // Somebody who is not dead is in it, or in a group below.
  bool is_populated() const;
  void kill() const;
  std::vector<pid_t> members() const;
  // When nobody is in it: groups below it, of agents that were killed, are removed.
  void tidy() const;

 private:
  ControlGroup(std::string path, rdzv::UniqueFd directory, rdzv::UniqueFd events)
      : path_(std::move(path)), directory_(std::move(directory)), events_(std::move(events)) {}

  std::string path_;
  rdzv::UniqueFd directory_;
  rdzv::UniqueFd events_;
};

// For the keeper: kills who is in the group at `path`, waits for their end and removes it. System
// calls only. Nothing happens if there is no such group.
void kill_control_group(const char* path);
void remove_control_group(const char* path, int patience_ms);

}  // namespace ddprun::agent
