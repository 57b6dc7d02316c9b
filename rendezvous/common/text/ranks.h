// Numbers of ranks, nodes and CPUs in few words. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// "0, 2-5": all of them, for ascending numbers.
inline std::string number_ranges(const std::vector<int>& sorted, std::string_view separator) {
  std::string text;
  for (std::size_t first = 0; first < sorted.size();) {
    std::size_t last = first;
    while (last + 1 < sorted.size() && sorted[last + 1] == sorted[last] + 1) ++last;
    if (first > 0) text += separator;
    text += std::to_string(sorted[first]);
    if (last > first) text += "-" + std::to_string(sorted[last]);
    first = last + 1;
  }
  return text;
}

// "rank 3", "ranks 0, 2-5"
inline std::string rank_ranges(const std::vector<int>& sorted) {
  return (sorted.size() == 1 ? "rank " : "ranks ") + number_ranges(sorted, ", ");
}

// In a sentence, where all of them would be too long: "ranks 0, 1 and 2", "ranks 0, 1, 2, 3, 4, 5 and 1018 more".
inline constexpr std::size_t kRanksNamed = 6;
inline std::string ranks_in_words(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  const std::size_t named = std::min(ranks.size(), kRanksNamed);
  for (std::size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    if (i > 0) text += is_last ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > named) text += " and " + std::to_string(ranks.size() - named) + " more";
  return text;
}

}  // namespace ddprun
