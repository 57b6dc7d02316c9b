// A duration in words: "2.5 s", "300 ms".
#pragma once

#include <chrono>
#include <string>

namespace ddprun {

inline std::string duration_text(std::chrono::milliseconds time) {
  if (time.count() < 1000 && time.count() > 0) return std::to_string(time.count()) + " ms";
  std::string text = std::to_string(time.count() / 1000);
  if (const auto rest = time.count() % 1000; rest != 0) {
    std::string digits = std::to_string(1000 + rest).substr(1);
    digits.erase(digits.find_last_not_of('0') + 1);
    text += "." + digits;
  }
  return text + " s";
}

}  // namespace ddprun
