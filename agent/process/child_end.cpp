#include "agent/process/child_end.h"

#include <cerrno>

namespace ddprun::agent {

ExitStatus status_of(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return ExitStatus::killed(WTERMSIG(wait_status), WCOREDUMP(wait_status));
  }
  return ExitStatus::exited(WEXITSTATUS(wait_status));
}

ExitStatus status_of(const siginfo_t& info) {
  return info.si_code == CLD_EXITED
             ? ExitStatus::exited(info.si_status)
             : ExitStatus::killed(info.si_status, info.si_code == CLD_DUMPED);
}

// A filter may refuse one of the two calls.
std::optional<ExitStatus> reaped(pid_t child, int options) {
  int status = 0;
  pid_t got = 0;
  while ((got = ::waitpid(child, &status, options)) < 0 && errno == EINTR) {
  }
  if (got == child) return status_of(status);
  if (got == 0 || errno == ECHILD) return std::nullopt;
  siginfo_t info{};
  while ((got = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | options)) < 0 &&
         errno == EINTR) {
  }
  return got == 0 && info.si_pid == child ? std::optional(status_of(info)) : std::nullopt;
}

}  // namespace ddprun::agent
