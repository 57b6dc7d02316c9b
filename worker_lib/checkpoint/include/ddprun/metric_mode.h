// MetricMode: whether the larger or the smaller value of a metric is the better one, for the best
// checkpoint, for early stopping and for History::best().
#pragma once

#include <cmath>
#include <optional>

namespace ddprun {

enum class MetricMode { kMax, kMin };

// `value` beats `other` by more than `min_delta`. A NaN beats nothing; a number beats NaN and none.
inline bool is_better(double value, std::optional<double> other, MetricMode mode,
                      double min_delta = 0) {
  if (std::isnan(value)) return false;
  if (!other || std::isnan(*other)) return true;
  return mode == MetricMode::kMax ? value > *other + min_delta : value < *other - min_delta;
}

}  // namespace ddprun
