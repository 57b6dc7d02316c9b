// The time that the cores use: the time since the start of their process. The clock has no now():
// the shell that drives a core passes the time in, and so can a test.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

namespace ddprun {

struct CoreClock {
  using duration = std::chrono::microseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<CoreClock>;
  static constexpr bool is_steady = true;
};
using CoreTime = CoreClock::time_point;

// A time that can be paused, for a core whose time limits must not expire while its messages are
// held back. A value; the caller passes in the real time.
class PausableTime {
 public:
  CoreTime at(CoreTime real) const { return paused_since_.value_or(real) - paused_for_; }
  // The real time of `time`, while not paused.
  CoreTime real(CoreTime time) const { return time + paused_for_; }

  bool is_paused() const { return paused_since_.has_value(); }
  void set_paused(bool is_paused, CoreTime real) {
    if (is_paused && !paused_since_) paused_since_ = real;
    if (!is_paused && paused_since_) paused_for_ += real - *std::exchange(paused_since_, {});
  }

 private:
  std::optional<CoreTime> paused_since_;
  CoreTime::duration paused_for_{};
};

}  // namespace ddprun
