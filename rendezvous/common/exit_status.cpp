#include "rendezvous/common/exit_status.h"

#include <strings.h>

#include <csignal>
#include <cstring>

namespace ddprun {

std::string signal_name(int signal) {
  // nullptr for real-time signals and for numbers that are no signal.
  if (const char* name = sigabbrev_np(signal)) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    return signal == SIGRTMIN ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  }
  return "signal " + std::to_string(signal);
}

int signal_number(std::string_view name) {
  std::string wanted(name);
  if (::strncasecmp(wanted.c_str(), "SIG", 3) == 0) wanted.erase(0, 3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* known = sigabbrev_np(signal);
    const bool is_it = known != nullptr && ::strcasecmp(wanted.c_str(), known) == 0;
    if (is_it || wanted == std::to_string(signal)) return signal;
  }
  return 0;
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return signal_name(signal) + " (signal " + std::to_string(signal) +
         (core_dumped ? ", core dumped)" : ")");
}

}  // namespace ddprun
