// Tells a further request to stop, which escalates, from the same request that arrives twice. GNU timeout signals its
// child and then the child's process group; a shell that loses its terminal, and `uv run` at Ctrl-C, pass on a signal that
// the kernel has sent already; systemd's SendSIGHUP= sends SIGHUP right after SIGTERM. A person who wants to escalate
// presses a key again, or waits longer than a second. Pure.
#pragma once

#include <chrono>
#include <csignal>
#include <optional>

namespace ddprun {

class StopRepeats {
 public:
  enum class Meaning {
    kFirst,   // the first request to stop
    kSame,    // the same request as the one before: ignore it
    kFurther  // another request: escalate
  };

  // `is_from_kernel`: a key of the terminal, or a terminal that was closed; else a process has sent the signal.
  Meaning of(int signal, bool is_from_kernel, std::chrono::steady_clock::time_point now) {
    const bool is_key = is_from_kernel && signal != SIGHUP;
    if (last_ && !is_key && now - last_->at < kSameWithin && are_one_request(signal, last_->signal))
      return Meaning::kSame;
    const Meaning meaning = last_ ? Meaning::kFurther : Meaning::kFirst;
    last_ = Counted{signal, now};
    return meaning;
  }

 private:
  static constexpr std::chrono::seconds kSameWithin{1};

  struct Counted {
    int signal = 0;
    std::chrono::steady_clock::time_point at;
  };

  // SIGHUP comes together with SIGTERM or SIGINT when a session ends.
  static bool are_one_request(int one, int other) {
    return one == other || one == SIGHUP || other == SIGHUP;
  }

  std::optional<Counted> last_;
};

}  // namespace ddprun
