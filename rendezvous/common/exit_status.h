// How a process ended, as a value: exit code, signal and core flag are separate fields, because the
// raw wait status mixes them (a core dump would shift 128 + signal). Copies, compares, prints.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

struct ExitStatus {
  int code = 0;              // 0…255; meaningful when signal == 0
  int signal = 0;            // 1…64 when a signal ended it
  bool core_dumped = false;  // with signal only

  static ExitStatus exited(int code) { return ExitStatus{code, 0, false}; }
  static ExitStatus killed(int signal, bool core_dumped = false) {
    return ExitStatus{0, signal, core_dumped};
  }

  bool is_success() const { return code == 0 && signal == 0; }

  // The exit code that a shell would report: the code, or 128 + signal.
  int as_shell_code() const { return signal != 0 ? 128 + signal : code; }

  // "exit code 3", "SIGSEGV (signal 11, core dumped)"
  std::string to_string() const;

  bool operator==(const ExitStatus&) const = default;
};

// "SIGTERM"; "SIGRTMIN+3"; "signal 99" if it has no name.
std::string signal_name(int signal);

// The number of "SIGTERM", "TERM", "term" or "15"; 0 if there is no such signal.
int signal_number(std::string_view name);

}  // namespace ddprun
