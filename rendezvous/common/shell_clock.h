// Real time as a CoreTime (clock.h), for a shell that drives a core: counts from the object's
// construction. A value; any thread.
#pragma once

#include <chrono>

#include "rendezvous/common/clock.h"

namespace ddprun::rdzv {

class ShellClock {
 public:
  CoreTime now() const {
    return CoreTime(
        std::chrono::duration_cast<CoreTime::duration>(std::chrono::steady_clock::now() - start_));
  }
  // For a timer.
  std::chrono::steady_clock::time_point at(CoreTime time) const {
    return start_ + time.time_since_epoch();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ddprun::rdzv
