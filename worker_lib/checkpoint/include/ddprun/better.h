// Which values of a metric are better: for early stopping, and for the checkpoint that is kept as the best.
#pragma once

#include <cmath>
#include <optional>

namespace ddprun {

enum class Better { kHigher, kLower };

// `value` beats `other` by more than `by`. A NaN beats nothing; every number beats a NaN, and none.
inline bool is_better(double value, std::optional<double> other, Better better, double by = 0) {
  if (std::isnan(value)) return false;
  if (!other || std::isnan(*other)) return true;
  return better == Better::kHigher ? value > *other + by : value < *other - by;
}

}  // namespace ddprun
