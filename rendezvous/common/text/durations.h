// Durations in words. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace ddprun {

// A limit, exactly as it was set: "2.5 s", "300 ms".
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

// What was measured: "12 ms", "3.4 s", "3 min 05 s", "2 h 03 min 04 s". Cut, not rounded: 9.99 s is not 10.
inline std::string time_in_words(std::chrono::nanoseconds time) {
  using namespace std::chrono;
  const long ms = std::max<long>(duration_cast<milliseconds>(time).count(), 0);
  if (ms < 1000) return std::to_string(ms) + " ms";
  char text[64];
  const long s = ms / 1000;
  if (s < 60) {
    std::snprintf(text, sizeof text, "%ld.%ld s", s, ms / 100 % 10);
  } else if (s < 3600) {
    std::snprintf(text, sizeof text, "%ld min %02ld s", s / 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%ld h %02ld min %02ld s", s / 3600, s / 60 % 60, s % 60);
  }
  return text;
}

}  // namespace ddprun
