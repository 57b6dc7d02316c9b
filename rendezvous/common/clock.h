// Time as the cores know it: how long after the start of their process something happened. The
// clock has no now(): whoever drives a core says what time it is, so that a test can say it too.
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

// A time that can stand still, for a core whose limits must not run out while what it says is held
// back. A value; who drives the core says what real time it is.
class PausableTime {
 public:
  CoreTime at(CoreTime real) const { return paused_since_.value_or(real) - paused_for_; }
  // Where it runs.
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
