// ExactSum: a sum of doubles without rounding, so that it depends neither on their order nor on how
// they are divided among ranks; only value() rounds, once. A value, 0.6 kB; nothing of Torch. One
// thread.
//
// A number wide enough for every double (a "long accumulator" as Ulrich Kulisch describes it): 32
// bits of it in each of some seventy 64-bit words, so that carries can wait. Words of several sums
// add up one by one, which is what an all-reduce of integers does.
#pragma once

#include <array>
#include <cstdint>

namespace ddprun {

class ExactSum {
 public:
  // 2^-1074 is bit 0, the largest double ends with bit 2098; two words more for the carries of as
  // many numbers as anybody adds, and three that count what is not finite.
  static constexpr int kDigits = 68;
  static constexpr int kWords = kDigits + 3;
  using Words = std::array<std::int64_t, kWords>;

  void add(double value);

  // The nearest double. Infinities and NaN as in any other order of adding.
  double value() const;

  // With all carries done: up to 2^31 of them can be added word by word.
  Words words() const;
  static ExactSum from_words(const Words& words);

 private:
  void carry();

  Words words_{};             // the digits, lowest first, then +infinities, -infinities, NaNs
  std::int64_t waiting_ = 0;  // numbers added since the last carry()
};

}  // namespace ddprun
