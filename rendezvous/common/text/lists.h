// Lists and counts in sentences. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace ddprun {

// "a, b, c"; also for numbers.
template <typename Words>
std::string joined(const Words& words, std::string_view separator = ", ") {
  std::string text;
  for (const auto& word : words) {
    if (&word != &*std::begin(words)) text += separator;
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(word)>>) {
      text += std::to_string(word);
    } else {
      text += word;
    }
  }
  return text;
}

// "a, b and 3 more": the first words, at most `shown`.
inline std::string joined_some(const std::vector<std::string>& words, std::size_t shown,
                               std::string_view others = "more") {
  if (words.size() <= shown) return joined(words);
  return joined(std::span(words).first(shown)) + " and " + std::to_string(words.size() - shown) +
         " " + std::string(others);
}

// "1 node", "2 nodes"
inline std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// "93 %" for 0.93, rounded to the nearest. Without std::lround: no program needs libm.
inline std::string percent(double share) {
  return std::to_string(static_cast<int>(share * 100 + 0.5)) + " %";
}

}  // namespace ddprun
