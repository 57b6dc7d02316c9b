// A view of a text without leading and trailing blanks, tabs and line ends. Any thread.
#pragma once

#include <string_view>

namespace ddprun {

inline std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

}  // namespace ddprun
