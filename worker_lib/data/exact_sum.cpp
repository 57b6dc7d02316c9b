#include "ddprun/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace ddprun {
namespace {

constexpr int kDigitBits = 32;
constexpr std::int64_t kDigitMask = 0xffffffff;
constexpr int kMantissaBits = 53;
constexpr int kLowestExponent = -1074;  // of bit 0
constexpr int kPositive = ExactSum::kDigits;
constexpr int kNegative = kPositive + 1;
constexpr int kNotANumber = kPositive + 2;
// Each number adds less than 2^32 to a word.
constexpr std::int64_t kMostWaiting = std::int64_t{1} << 30;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    ++words_[at(std::isnan(value) ? kNotANumber : value > 0 ? kPositive : kNegative)];
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const int exponent = static_cast<int>(bits >> (kMantissaBits - 1) & 0x7ff);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << (kMantissaBits - 1)) - 1);
  if (exponent > 0) mantissa |= std::uint64_t{1} << (kMantissaBits - 1);
  // A number without the leading bit has the exponent of 1.
  const int shift = exponent > 0 ? exponent - 1 : 0;
  const int digit = shift / kDigitBits;
  const int within = shift % kDigitBits;
  const std::uint64_t low = (mantissa & kDigitMask) << within;
  const std::uint64_t high = (mantissa >> kDigitBits) << within;
  const std::int64_t parts[3] = {
      static_cast<std::int64_t>(low & kDigitMask),
      static_cast<std::int64_t>((low >> kDigitBits) + (high & kDigitMask)),
      static_cast<std::int64_t>(high >> kDigitBits),
  };
  const std::int64_t sign = value < 0 ? -1 : 1;
  for (int i = 0; i < 3; ++i) words_[at(digit + i)] += sign * parts[i];
  if (++waiting_ == kMostWaiting) carry();
}

// Every digit but the highest is between 0 and 2^32 then; the highest has the sign.
void ExactSum::carry() {
  std::int64_t carried = 0;
  for (int i = 0; i < kDigits; ++i) {
    std::int64_t& word = words_[at(i)];
    word += carried;
    if (i == kDigits - 1) break;
    carried = word >> kDigitBits;
    word &= kDigitMask;
  }
  waiting_ = 0;
}

ExactSum::Words ExactSum::words() const {
  ExactSum carried = *this;
  carried.carry();
  return carried.words_;
}

ExactSum ExactSum::from_words(const Words& words) {
  ExactSum sum;
  sum.words_ = words;
  sum.carry();
  return sum;
}

double ExactSum::value() const {
  if (words_[at(kNotANumber)] > 0 || (words_[at(kPositive)] > 0 && words_[at(kNegative)] > 0)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (words_[at(kPositive)] > 0) return std::numeric_limits<double>::infinity();
  if (words_[at(kNegative)] > 0) return -std::numeric_limits<double>::infinity();

  ExactSum magnitude = *this;
  magnitude.carry();
  const bool is_negative = magnitude.words_[at(kDigits - 1)] < 0;
  if (is_negative) {
    for (int i = 0; i < kDigits; ++i) magnitude.words_[at(i)] = -magnitude.words_[at(i)];
    magnitude.carry();
  }
  const auto bit = [&magnitude](int index) {
    return magnitude.words_[at(index / kDigitBits)] >> (index % kDigitBits) & 1;
  };
  int highest = kDigits * kDigitBits - 1;
  while (highest >= 0 && bit(highest) == 0) --highest;
  // The mantissa's bits, then half a unit, then whether anything is below: ties go to even.
  const int lowest = std::max(highest - kMantissaBits + 1, 0);
  std::uint64_t mantissa = 0;
  for (int i = highest; i >= lowest; --i) {
    mantissa = mantissa << 1 | static_cast<std::uint64_t>(bit(i));
  }
  if (lowest > 0 && bit(lowest - 1) == 1) {
    bool is_more_than_half = false;
    for (int i = lowest - 2; i >= 0 && !is_more_than_half; --i) is_more_than_half = bit(i) == 1;
    if (is_more_than_half || mantissa % 2 == 1) ++mantissa;
  }
  const double value = std::ldexp(static_cast<double>(mantissa), lowest + kLowestExponent);
  return is_negative ? -value : value;
}

}  // namespace ddprun
