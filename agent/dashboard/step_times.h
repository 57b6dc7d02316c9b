// How long a step of each rank takes, computed from its progress at some moments. Workers report
// when they did their last step, so the mean between two moments is exact however far apart they
// are, and no polling in between is needed. Pure; each viewer has its own object.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>

#include "rendezvous/common/ids.h"

namespace ddprun::agent {

class StepTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Seconds = std::chrono::duration<double>;

  // `rank` of `round` has done `step` at that time. Returns the mean time of a step since the last
  // call with a lower step; nothing if there was none.
  std::optional<Seconds> look(Round round, int rank, std::int64_t step, TimePoint done_at) {
    if (round != round_) {
      ranks_.clear();
      round_ = round;
    }
    Rank& seen = ranks_.try_emplace(rank, Rank{step, done_at, {}}).first->second;
    if (step < seen.step) seen = {step, done_at, {}};
    if (step > seen.step && done_at > seen.done_at) {
      const auto count = static_cast<double>(step - seen.step);
      seen = {step, done_at, Seconds(done_at - seen.done_at) / count};
    }
    return seen.time;
  }

 private:
  struct Rank {
    std::int64_t step = 0;
    TimePoint done_at;
    std::optional<Seconds> time;
  };

  Round round_{};
  std::map<int, Rank> ranks_;
};

}  // namespace ddprun::agent
