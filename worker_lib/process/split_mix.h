// One step of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators",
// 2014): neighbouring numbers become numbers that are far apart. For seeds made of other numbers.
#pragma once

#include <cstdint>

namespace ddprun {

constexpr std::uint64_t split_mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace ddprun
