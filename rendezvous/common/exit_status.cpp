#include "rendezvous/common/exit_status.h"

#include <strings.h>

#include <array>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace ddprun {

namespace {

// By number, on Linux for x86-64 and arm64; sigabbrev_np() is of glibc 2.32.
constexpr std::array<const char*, 32> kNames{
    nullptr, "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1",
    "SEGV",  "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN",
    "TTOU",  "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS"};
static_assert(SIGKILL == 9 && SIGUSR1 == 10 && SIGCHLD == 17 && SIGURG == 23 && SIGSYS == 31);

// nullptr for real-time signals and for numbers that are no signal.
const char* short_name(int signal) {
  return signal < 0 || signal >= static_cast<int>(kNames.size())
             ? nullptr
             : kNames[static_cast<std::size_t>(signal)];
}

}  // namespace

std::string signal_name(int signal) {
  if (const char* name = short_name(signal)) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    return signal == SIGRTMIN ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  }
  return "signal " + std::to_string(signal);
}

int signal_number(std::string_view name) {
  std::string wanted(name);
  if (::strncasecmp(wanted.c_str(), "SIG", 3) == 0) wanted.erase(0, 3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* known = short_name(signal);
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
