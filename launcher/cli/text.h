// Text functions that several parts of the launcher use. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "rendezvous/common/trimmed.h"

namespace ddprun::cli {

// "a,,b" gives "a", "", "b"; an empty text gives one empty part.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// The reverse, also for numbers.
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

// "1 node", "2 nodes"
inline std::string counted(std::int64_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

inline std::string replaced(std::string_view text, char what, std::string_view by) {
  std::string out;
  for (const char c : text) out += c == what ? by : std::string_view(&c, 1);
  return out;
}

}  // namespace ddprun::cli
