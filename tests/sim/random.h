// The random numbers of a simulation: the same seed gives the same ones on every machine.
#pragma once

#include <chrono>
#include <cstdint>

namespace ddprun::sim {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15U + 0x1234567) {}

  std::uint64_t next() {  // splitmix64
    state_ += 0x9E3779B97F4A7C15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  // A number from first to last, both included.
  int number(int first, int last) {
    return first + static_cast<int>(next() % static_cast<std::uint64_t>(last - first + 1));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }
  std::chrono::microseconds time(std::chrono::microseconds least, std::chrono::microseconds most) {
    const auto span = static_cast<std::uint64_t>((most - least).count()) + 1;
    return least + std::chrono::microseconds(static_cast<std::int64_t>(next() % span));
  }

 private:
  std::uint64_t state_;
};

}  // namespace ddprun::sim
