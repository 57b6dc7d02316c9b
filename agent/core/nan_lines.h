// Which reports of a NaN are told: in data-parallel training all ranks report it at the same step. Of each name one line at
// a time: the next one follows at a later step, when the rank of the last one has reported another value, or has ended; and
// kPause after the last one at the earliest, because a value may be finite at every other step. A value; pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace ddprun::agent {

class NanLines {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kNamesMax = 64;
  static constexpr std::chrono::seconds kPause{10};

  // Nothing: no line is due. Else how many were left out since the last one, only because it was less than kPause ago.
  // `still`: whether the latest report of that rank has a NaN by this name.
  std::optional<int> line(const std::string& name, int rank, std::int64_t step, Time now,
                          const std::function<bool(int rank)>& still) {
    const auto last = lines_.find(name);
    if (last == lines_.end()) {
      if (lines_.size() >= kNamesMax) return std::nullopt;
      lines_.emplace(name, Last{rank, step, now});
      return 0;
    }
    Last& its = last->second;
    if (its.rank != rank && (step <= its.step || still(its.rank))) return std::nullopt;
    its.rank = rank;
    its.step = step;
    if (now - its.told_at < kPause) {
      ++its.left_out;
      return std::nullopt;
    }
    its.told_at = now;
    return std::exchange(its.left_out, 0);
  }

 private:
  struct Last {
    int rank = 0;
    std::int64_t step = 0;
    Time told_at;
    int left_out = 0;
  };
  std::map<std::string, Last> lines_;  // by name
};

}  // namespace ddprun::agent
