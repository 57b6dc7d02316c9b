#include "rendezvous/common/exit_status.h"

#include <csignal>
#include <cstring>

namespace ddprun {
namespace {

// sigabbrev_np gives "TERM"; nullptr for real-time signals and for numbers that are no signal.
const char* abbreviation(int signal) { return sigabbrev_np(signal); }

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

}  // namespace

std::string signal_name(int signal) {
  if (const char* name = abbreviation(signal)) return std::string("SIG") + name;
  if (signal >= SIGRTMIN && signal <= SIGRTMAX) {
    return signal == SIGRTMIN ? "SIGRTMIN" : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
  }
  return "signal " + std::to_string(signal);
}

int signal_number(std::string_view name) {
  std::string wanted = upper(name);
  if (wanted.rfind("SIG", 0) == 0) wanted.erase(0, 3);
  for (int signal = 1; signal < NSIG; ++signal) {
    const char* known = abbreviation(signal);
    if (wanted == std::to_string(signal) || (known != nullptr && wanted == known)) return signal;
  }
  return 0;
}

std::string ExitStatus::to_string() const {
  if (signal == 0) return "exit code " + std::to_string(code);
  return signal_name(signal) + " (signal " + std::to_string(signal) +
         (core_dumped ? ", core dumped)" : ")");
}

}  // namespace ddprun
