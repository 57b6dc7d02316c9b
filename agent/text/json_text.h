// JSON helpers that events, status, records and the live page share. Pure; any thread.
//
// Never pass a worker's bytes to Boost.JSON directly: they may not be UTF-8, and every line must be
// valid JSON whatever a worker wrote.
#pragma once

#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {

inline constexpr std::size_t kJsonTextBytesMax = 4096;

// A string as as_utf8() makes it.
inline boost::json::value json_text(std::string_view bytes, std::size_t bytes_max) {
  return boost::json::value(as_utf8(bytes, bytes_max));
}

inline std::int64_t in_us(std::chrono::nanoseconds duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace ddprun::agent
