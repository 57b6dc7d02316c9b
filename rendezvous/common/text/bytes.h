// Amounts of memory in words. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun {

// "61.2", rounded
inline std::string gibibytes(std::uint64_t bytes) {
  const std::uint64_t tenths = (bytes / 1024 * 10 + (1 << 19)) >> 20;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10);
}

}  // namespace ddprun
