// When a process that waits for others says so again: after 10, 30 and 60 s, then once a minute.
#pragma once

#include <chrono>
#include <optional>

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

// The lines of one wait: the first is due at once.
class Notices {
 public:
  // True: the line is to be said now, and next() is when the one after it is due.
  bool are_due(CoreTime now) {
    if (now < next_) return false;
    if (!first_) first_ = now;
    next_ = *first_ + next_notice(now - *first_);
    return true;
  }
  CoreTime next() const { return next_; }

 private:
  std::optional<CoreTime> first_;
  CoreTime next_{};
};

}  // namespace ddprun::rdzv
