// How a child of this process has ended, and its reaping. System calls only; any thread.
#pragma once

#include <sys/types.h>
#include <sys/wait.h>

#include <optional>

#include "rendezvous/common/exit_status.h"

namespace ddprun::agent {

// From a status of waitpid(), and from one of waitid().
ExitStatus status_of(int wait_status);
ExitStatus status_of(const siginfo_t& info);

// Reaps the child. `options`: WNOHANG, or 0 to wait for its end. None: it has not ended, it is no
// child, or a filter refuses all calls that reap.
std::optional<ExitStatus> reaped(pid_t child, int options);

}  // namespace ddprun::agent
