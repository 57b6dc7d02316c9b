// Text functions that several parts of the launcher use. Pure.
#pragma once

#include <algorithm>
#include <string_view>
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

}  // namespace ddprun::cli
