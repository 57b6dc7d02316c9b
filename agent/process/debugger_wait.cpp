#include "agent/process/debugger_wait.h"

#include "agent/process/search_path.h"

namespace ddprun::agent {

namespace {

// Without this, gdb reports the SIGSTOP that stopped the worker as a new one, and the worker stays
// stopped after "detach". So gdb sends SIGCONT after it has attached, which does not make the
// worker run, and ignores both signals.
std::string gdb_line(const std::string& attach, const std::string& kill) {
  return "  gdb " + attach + " -ex 'handle SIGSTOP SIGCONT nostop noprint nopass' -ex 'shell " +
         kill + "'\n";
}

}  // namespace

std::string waits_for_debugger_text(int rank, pid_t pid, const std::string& host,
                                    const Environment& environment) {
  const std::string path = value_or_empty(environment, "PATH");
  const std::string number = std::to_string(pid);
  const std::string go_on = "kill -CONT " + number;
  std::string text = "ddprun: rank " + std::to_string(rank) + " (pid " + number +
                     ") waits before its first instruction; to debug it, or to let it go on:\n" +
                     gdb_line("-p " + number, go_on);
  if (!find_in_path(path, "gdbserver").empty()) {
    text += gdb_line("-ex 'target remote | ssh " + host + " gdbserver --attach - " + number + "'",
                     "ssh " + host + " " + go_on);
  }
  return text + "  " + go_on + "\n";
}

}  // namespace ddprun::agent
