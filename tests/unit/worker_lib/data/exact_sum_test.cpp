#include "ddprun/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace ddprun {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();

double sum_of(const std::vector<double>& values) {
  ExactSum sum;
  for (const double value : values) sum.add(value);
  return sum.value();
}

// Another way to the exact sum: Shewchuk's growing expansions, as Python's math.fsum has them. Its
// result may differ in ties of three parts only; those are corrected as there.
double expansion_sum(const std::vector<double>& values) {
  std::vector<double> parts;
  for (double x : values) {
    std::size_t kept = 0;
    for (double y : parts) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y;
      const double low = y - (high - x);
      if (low != 0) parts[kept++] = low;
      x = high;
    }
    parts.resize(kept);
    parts.push_back(x);
  }
  if (parts.empty()) return 0;
  double high = parts.back();
  parts.pop_back();
  double low = 0;
  while (!parts.empty()) {
    const double x = high;
    const double y = parts.back();
    parts.pop_back();
    high = x + y;
    low = y - (high - x);
    if (low != 0) break;
  }
  if (!parts.empty() && ((low < 0 && parts.back() < 0) || (low > 0 && parts.back() > 0))) {
    const double twice = low * 2;
    if (twice == (high + twice) - high) high += twice;
  }
  return high;
}

TEST(ExactSum, OneNumberIsItself) {
  for (const double value : {0.0, 1.0, -1.5, 0.1, kLargest, -kLargest, kSmallest, -kSmallest,
                             std::numeric_limits<double>::min(), 4503599627370497.5}) {
    EXPECT_EQ(sum_of({value}), value);
  }
}

TEST(ExactSum, LosesNothingBetweenTheLargestAndTheSmallest) {
  EXPECT_EQ(sum_of({kLargest, kSmallest, -kLargest}), kSmallest);
  EXPECT_EQ(sum_of({1e308, 1e308, -1e308, -1e308, 0.5}), 0.5);
  EXPECT_EQ(sum_of({1e100, 1, -1e100, -1}), 0.0);
  EXPECT_EQ(sum_of({kLargest, kLargest}), kInfinity);
  EXPECT_EQ(sum_of({-kSmallest, -kSmallest}), -2 * kSmallest);
}

TEST(ExactSum, RoundsOnceAndTiesToEven) {
  const double half_unit = std::ldexp(1, -53);
  EXPECT_EQ(sum_of({1, half_unit}), 1);
  EXPECT_EQ(sum_of({1, half_unit, kSmallest}), 1 + 2 * half_unit);
  EXPECT_EQ(sum_of({1 + 2 * half_unit, half_unit}), 1 + 4 * half_unit);
  EXPECT_EQ(sum_of({-1, -half_unit, -kSmallest}), -1 - 2 * half_unit);
  EXPECT_EQ(sum_of(std::vector<double>(10, 0.1)), 1.0);
}

TEST(ExactSum, AgreesWithAnotherExactSumInAnyOrder) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> values;
    const int spread = round % 2 == 0 ? 20 : 900;
    for (int i = 0; i < 200; ++i) {
      const double mantissa = std::ldexp(static_cast<double>(random() >> 11), -52) - 1;
      values.push_back(std::ldexp(mantissa, static_cast<int>(random() % spread) - spread / 2));
      if (i % 3 == 0) values.push_back(-values[random() % values.size()]);  // cancellation
    }
    const double expected = expansion_sum(values);
    EXPECT_EQ(sum_of(values), expected) << round;
    std::shuffle(values.begin(), values.end(), random);
    EXPECT_EQ(sum_of(values), expected) << round;
  }
}

TEST(ExactSum, WordsOfSeveralSumsAddUp) {
  std::mt19937_64 random(6);
  ExactSum whole;
  std::vector<ExactSum> parts(5);
  for (int i = 0; i < 1000; ++i) {
    const double value = std::ldexp(static_cast<double>(random()) - 9e18, static_cast<int>(i % 90));
    whole.add(value);
    parts[random() % parts.size()].add(value);
  }
  ExactSum::Words words{};
  for (const ExactSum& part : parts) {
    const ExactSum::Words more = part.words();
    std::transform(words.begin(), words.end(), more.begin(), words.begin(), std::plus<>());
  }
  EXPECT_EQ(ExactSum::from_words(words).value(), whole.value());
}

TEST(ExactSum, WhatIsNotFiniteStaysSo) {
  EXPECT_EQ(sum_of({1, kInfinity, kInfinity}), kInfinity);
  EXPECT_EQ(sum_of({-kInfinity, kLargest}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({1, std::nan("")})));
}

}  // namespace
}  // namespace ddprun
