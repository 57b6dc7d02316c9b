// How long something takes, for the programs of scripts/bench.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace ddprun::bench {

template <typename Function>
double milliseconds(const Function& work) {
  const auto begun = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun)
      .count();
}

// Of an odd number of times; of an even one the upper of the two in the middle.
inline double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace ddprun::bench
