// Reductions, element by element, against the plainest way to calculate them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "worker_lib/shm/shm_reduce.h"

namespace ddprun::shm {
namespace {

using testing::ElementsAre;

template <typename Element>
std::vector<Element> reduced(Type type, Op op, const std::vector<std::vector<Element>>& ranks) {
  std::vector<Element> result(ranks[0].size());
  std::vector<const void*> from;
  for (const auto& rank : ranks) from.push_back(rank.data());
  reduce(type, op, result.data(), from.data(), static_cast<int>(ranks.size()), result.size());
  return result;
}

double value_of_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double size = exponent == 31  ? (fraction ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

double value_of_bfloat(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
}

// Whether `found` is what `exact` rounds to: none is nearer, and of two as near it is the even one.
bool is_nearest(double exact, std::uint16_t found, double (*value_of)(std::uint16_t)) {
  const double value = value_of(found);
  if (std::isnan(exact)) return std::isnan(value);
  if (std::isinf(value) || std::isinf(exact)) return std::isinf(value);  // the caller's range
  const double error = std::abs(value - exact);
  for (const int step : {-1, 1}) {
    const auto other = static_cast<std::uint16_t>(found + step);
    if ((other & 0x7fff) > 0x7fff || ((other ^ found) & 0x8000)) continue;
    const double nearer = std::abs(value_of(other) - exact);
    if (nearer < error || (nearer == error && (found & 1))) return false;
  }
  return true;
}

TEST(ShmReduce, SmallFloatsComeBackAsTheyWere) {
  std::vector<std::uint16_t> all(1 << 16);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  const auto halves = reduced<std::uint16_t>(Type::kFloat16, Op::kSum, {all});
  const auto bfloats = reduced<std::uint16_t>(Type::kBFloat16, Op::kSum, {all});
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(value_of_half(all[i]))) {
      EXPECT_TRUE(std::isnan(value_of_half(halves[i])));
    } else {
      EXPECT_EQ(halves[i], all[i]);
    }
    if (std::isnan(value_of_bfloat(all[i]))) {
      EXPECT_TRUE(std::isnan(value_of_bfloat(bfloats[i])));
    } else {
      EXPECT_EQ(bfloats[i], all[i]);
    }
  }
}

TEST(ShmReduce, SumsOfSmallFloatsAreRoundedOnceToTheNearest) {
  std::mt19937 random(1);
  std::vector<std::uint16_t> a(200000);
  std::vector<std::uint16_t> b(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::uint16_t>(random());
    // Near each other, where digits are lost; and subnormals by the thousand.
    b[i] = static_cast<std::uint16_t>(i % 2 ? random() : a[i] + random() % 4096);
    if (i % 5 == 0) a[i] &= 0x87ff;
  }
  const auto halves = reduced<std::uint16_t>(Type::kFloat16, Op::kSum, {a, b});
  const auto bfloats = reduced<std::uint16_t>(Type::kBFloat16, Op::kSum, {a, b});
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double half = value_of_half(a[i]) + value_of_half(b[i]);
    const double most = 65520;  // from there on it is infinite
    EXPECT_TRUE(
        is_nearest(std::abs(half) >= most ? half * INFINITY : half, halves[i], value_of_half))
        << a[i] << " + " << b[i] << " = " << halves[i];
    const auto exact = static_cast<double>(std::bit_cast<float>(std::uint32_t{a[i]} << 16) +
                                           std::bit_cast<float>(std::uint32_t{b[i]} << 16));
    EXPECT_TRUE(is_nearest(exact, bfloats[i], value_of_bfloat)) << a[i] << " + " << b[i];
  }
}

TEST(ShmReduce, AddsInTheOrderOfRanksAndNoOther) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> ranks(5, std::vector<float>(4097));
  for (auto& rank : ranks) {
    for (float& x : rank) x = normal(random) * std::ldexp(1.0F, static_cast<int>(random() % 20));
  }
  const auto found = reduced(Type::kFloat32, Op::kSum, ranks);
  const auto mean = reduced(Type::kFloat32, Op::kAverage, ranks);
  for (std::size_t i = 0; i < found.size(); ++i) {
    volatile float sum = ranks[0][i];  // no register that holds more digits
    for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum = sum + ranks[rank][i];
    EXPECT_EQ(found[i], sum);
    EXPECT_EQ(mean[i], sum / 5);
  }
}

TEST(ShmReduce, WritesWhereItReads) {
  std::vector<float> own(5000, 1);
  const std::vector<float> other(own.size(), 2);
  const void* const from[] = {other.data(), own.data()};
  reduce(Type::kFloat32, Op::kSum, own.data(), from, 2, own.size());
  EXPECT_EQ(own, std::vector<float>(own.size(), 3));
}

TEST(ShmReduce, IntegersWrapAndAverageTowardsZero) {
  using Bytes = std::vector<std::vector<std::int8_t>>;
  EXPECT_THAT(reduced(Type::kInt8, Op::kSum, Bytes{{127, -7}, {1, 2}}), ElementsAre(-128, -5));
  EXPECT_THAT(reduced(Type::kInt8, Op::kAverage, Bytes{{7, -7}, {0, 2}}), ElementsAre(3, -2));
  EXPECT_THAT(reduced(Type::kInt8, Op::kProduct, Bytes{{16, -3}, {16, 5}}), ElementsAre(0, -15));
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  using Words = std::vector<std::vector<std::int64_t>>;
  EXPECT_THAT(reduced(Type::kInt64, Op::kSum, Words{{kMost}, {1}}), ElementsAre(-kMost - 1));
  using Halves = std::vector<std::vector<std::uint16_t>>;
  EXPECT_THAT(reduced(Type::kUInt16, Op::kProduct, Halves{{65535}, {65535}}), ElementsAre(1));
  EXPECT_THAT(reduced(Type::kUInt16, Op::kAnd, Halves{{0x0ff0}, {0x00ff}}), ElementsAre(0x00f0));
  EXPECT_THAT(reduced(Type::kUInt16, Op::kOr, Halves{{0x0ff0}, {0x00ff}}), ElementsAre(0x0fff));
  EXPECT_THAT(reduced(Type::kUInt16, Op::kXor, Halves{{0x0ff0}, {0x00ff}}), ElementsAre(0x0f0f));
}

TEST(ShmReduce, MinimumAndMaximumOfANanAreNan) {
  const std::vector<std::vector<float>> ranks{{1, NAN, 3, NAN}, {2, 2, NAN, NAN}};
  for (const Op op : {Op::kMinimum, Op::kMaximum}) {
    const auto found = reduced(Type::kFloat32, op, ranks);
    EXPECT_EQ(found[0], op == Op::kMinimum ? 1 : 2);
    for (std::size_t i = 1; i < found.size(); ++i) EXPECT_TRUE(std::isnan(found[i])) << i;
  }
}

TEST(ShmReduce, BoolIsAnyOrAll) {
  const std::vector<std::vector<std::uint8_t>> ranks{{0, 1, 0, 1}, {0, 0, 1, 1}};
  EXPECT_THAT(reduced(Type::kBool, Op::kSum, ranks), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(reduced(Type::kBool, Op::kMaximum, ranks), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(reduced(Type::kBool, Op::kProduct, ranks), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(reduced(Type::kBool, Op::kXor, ranks), ElementsAre(0, 1, 1, 0));
}

TEST(ShmReduce, SaysWhatMakesNoSense) {
  EXPECT_EQ(why_not(Type::kFloat32, Op::kSum), "");
  EXPECT_EQ(why_not(Type::kFloat32, Op::kXor), "BXOR is for integers and bool");
  EXPECT_EQ(why_not(Type::kBool, Op::kAverage), "bool has no average");
  EXPECT_NE(why_not(Type::kUnknown, Op::kSum), "");
}

}  // namespace
}  // namespace ddprun::shm
