// Many ranks in few words: "rank 3", "ranks 0, 2-5".
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun {

inline std::string rank_ranges(const std::vector<int>& sorted) {
  std::string text = sorted.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < sorted.size();) {
    std::size_t last = first;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    text += (first == 0 ? "" : ", ") + std::to_string(sorted[first]);
    if (last > first) text += "-" + std::to_string(sorted[last]);
    first = last + 1;
  }
  return text;
}

}  // namespace ddprun
