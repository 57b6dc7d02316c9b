// When a process that waits for others says so again: after 10, 30 and 60 s, then once a minute.
#pragma once

#include <chrono>

#include "rendezvous/common/clock.h"

namespace ddprun::rdzv {

// Both count from the begin of the wait; the result is later than `waited`.
inline CoreTime::duration next_notice(CoreTime::duration waited) {
  using std::chrono::seconds;
  for (const seconds each : {seconds(10), seconds(30), seconds(60)}) {
    if (waited < each) return each;
  }
  return std::chrono::floor<std::chrono::minutes>(waited) + std::chrono::minutes(1);
}

}  // namespace ddprun::rdzv
