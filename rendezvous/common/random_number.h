// A number that no other process chooses: for what must be told apart, not for what must be secret.
#pragma once

#include <cstdint>
#include <random>

namespace ddprun {

inline std::uint64_t random_number() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

}  // namespace ddprun
