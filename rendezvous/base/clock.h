// Time as the cores know it: how long after the start of their process something happened. The
// clock has no now(): whoever drives a core says what time it is, so that a test can say it too.
#pragma once

#include <chrono>

namespace ddprun {

struct CoreClock {
  using duration = std::chrono::microseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<CoreClock>;
  static constexpr bool is_steady = true;
};
using CoreTime = CoreClock::time_point;

}  // namespace ddprun
