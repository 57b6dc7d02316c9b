// Points in time as text. Any thread.
#pragma once

#include <chrono>
#include <ctime>
#include <string>

namespace ddprun {

// As strftime writes it ("%H:%M:%S"): of this machine's time zone, or with ::gmtime_r of UTC.
inline std::string time_text(const char* format, std::chrono::system_clock::time_point when,
                             std::tm* (*zone)(const std::time_t*, std::tm*) = &::localtime_r) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm fields{};
  zone(&seconds, &fields);
  char text[64];
  return {text, std::strftime(text, sizeof text, format, &fields)};
}

// ".042"
inline std::string milliseconds_of(std::chrono::system_clock::time_point when) {
  using namespace std::chrono;
  const auto rest = duration_cast<milliseconds>(when.time_since_epoch()).count() % 1000;
  return "." + std::to_string(1000 + rest).substr(1);
}

}  // namespace ddprun
