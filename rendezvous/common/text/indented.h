// Lines inside of a report. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

// Each line of the text behind `indent`, and with a line end, also the last one.
inline std::string indented(std::string_view text, std::string_view indent) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    out.append(indent).append(text.substr(0, end)) += '\n';
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

}  // namespace ddprun
