// A tiny process that outlives the agent by a moment: when the agent vanishes (SIGKILL, out of
// memory) it kills every process group that a worker had registered, so that no worker, and no
// child of one that stayed in its group, is left behind.
//
// How: the keeper reads a pipe whose writing ends are held by the agent alone (they are
// close-on-exec). A worker registers itself between fork and exec, so there is no moment in which
// it runs unknown; the agent takes a group off the list before it reaps the group's leader, so the
// number cannot have been given to a stranger. End of file means that the agent is gone.
//
// The agent makes it first, before it has a thread. When the keeper itself is killed, the agent
// learns of it as of any child and makes a new one. Owner and only caller: the agent's event loop
// thread.
#pragma once

#include <sys/types.h>

#include <vector>

#include "rendezvous/base/result.h"

namespace ddprun::agent {

class Keeper {
 public:
  // Forks the keeper; `groups` are registered from the start (when it replaces a dead one).
  static Result<Keeper> start(const std::vector<pid_t>& groups = {});

  Keeper(Keeper&& other) noexcept;
  Keeper& operator=(Keeper&& other) noexcept;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;
  ~Keeper();  // lets the keeper go (it kills what is still registered) and reaps it

  pid_t pid() const { return pid_; }

  // Where a worker writes its registration between fork and exec; see register_self.
  int registration_fd() const { return pipe_fd_; }

  void forget(pid_t group);

  // Reaps a keeper that has died and says so, once; then it has to be replaced.
  bool has_died();

  // To be called in the child between fork and exec; async-signal-safe.
  static void register_self(int registration_fd);

 private:
  Keeper(pid_t pid, int pipe_fd) : pid_(pid), pipe_fd_(pipe_fd) {}
  void dismiss();

  pid_t pid_ = -1;
  int pipe_fd_ = -1;
};

}  // namespace ddprun::agent
