// Little-endian integers in byte strings, as in c10d's wire format. Pure; any thread. The caller
// checks that there are enough bytes.
#pragma once

#include <bit>
#include <concepts>
#include <cstring>
#include <string>

namespace ddprun::rdzv::wire {

static_assert(std::endian::native == std::endian::little,
              "c10d sends integers in host order; ours is little-endian");

template <std::integral T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <std::integral T>
void append(std::string& to, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  to.append(bytes, sizeof value);
}

}  // namespace ddprun::rdzv::wire
