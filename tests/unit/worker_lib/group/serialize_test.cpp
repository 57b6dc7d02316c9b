#include "ddprun/serialize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

struct Point {
  int x = 0;
  double y = 0;
  bool operator==(const Point&) const = default;
};

struct Node {
  std::string name;
  std::vector<Node> children;
  std::optional<Point> at;
  bool operator==(const Node&) const = default;

  template <typename Fields>
  void fields(Fields& field) {
    field(name, children, at);
  }
};

enum class Colour { kRed = 7 };

template <typename T>
void expect_round_trip(const T& value) {
  EXPECT_EQ(from_bytes<T>(to_bytes(value)), value);
}

TEST(Serialize, EveryKindComesBackAsItWas) {
  expect_round_trip(42);
  expect_round_trip(std::numeric_limits<std::uint64_t>::max());
  expect_round_trip(-0.1F);
  expect_round_trip(true);
  expect_round_trip(Colour::kRed);
  expect_round_trip(std::string("a\0b", 3));
  expect_round_trip(std::string());
  expect_round_trip(Point{3, 4.5});
  expect_round_trip(std::vector<double>{1, 2, 3});
  expect_round_trip(std::vector<bool>{true, false, true});
  expect_round_trip(std::vector<std::string>{"", "x"});
  expect_round_trip(std::vector<std::vector<int>>{{1}, {}, {2, 3}});
  expect_round_trip(std::array<std::string, 2>{"a", "b"});
  expect_round_trip(std::pair<int, std::string>{1, "one"});
  expect_round_trip(std::tuple<int, std::string, Point>{1, "one", {2, 3}});
  expect_round_trip(std::optional<std::string>());
  expect_round_trip(std::optional<std::string>("here"));
  using Variant = std::variant<int, std::string, bool>;
  expect_round_trip(Variant(5));
  expect_round_trip(Variant("text"));
  expect_round_trip(Variant(true));
  expect_round_trip(std::map<std::string, std::vector<int>>{{"a", {1}}, {"b", {}}});
  expect_round_trip(std::unordered_map<int, double>{{1, 0.5}, {2, 0.25}});
  expect_round_trip(std::set<std::string>{"x", "y"});
  expect_round_trip(std::complex<float>(1, -2));
  expect_round_trip(std::chrono::milliseconds(1500ms));
}

TEST(Serialize, AStructThatNamesItsFieldsMayHoldItsOwnKind) {
  expect_round_trip(
      Node{"root", {{"left", {}, Point{1, 2}}, {"right", {{"leaf", {}, {}}}, {}}}, {}});
}

// Every beginning of the bytes, and every byte of them changed: an error or another value, never a
// crash or a demand for endless memory.
TEST(Serialize, DamagedBytesAreAnErrorOrAValue) {
  const Node value{"root", {{"left", {}, Point{1, 2}}}, {}};
  const std::string bytes = to_bytes(value);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(from_bytes<Node>(std::string_view(bytes).substr(0, length)), Failure) << length;
  }
  EXPECT_THROW(from_bytes<Node>(bytes + "x"), Failure);
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        from_bytes<Node>(damaged);
      } catch (const Failure& failure) {
        EXPECT_EQ(failure.error().code, ErrorCode::kProtocol);
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 3 * 8 * 4) << "the type and the lengths at least";
}

TEST(Serialize, AnotherTypeIsRefused) {
  const std::string bytes = to_bytes(std::vector<int>{1, 2});
  EXPECT_THROW(from_bytes<std::vector<float>>(bytes), Failure);
  EXPECT_THROW(from_bytes<std::string>(bytes), Failure);
  EXPECT_THROW(from_bytes<int>(""), Failure);
}

struct Closed {  // neither plain nor with fields
  std::string text;
};

TEST(Serialize, WhatCannotBeSentIsKnownToTheCompiler) {
  static_assert(Serialisable<Node>);
  static_assert(Serialisable<std::vector<Node>>);
  static_assert(!Serialisable<Closed>);
  static_assert(!Serialisable<std::vector<Closed>>);
  static_assert(!Serialisable<int*>);
  static_assert(!Serialisable<const char*>);
  static_assert(!Serialisable<std::string_view>);
}

}  // namespace
}  // namespace ddprun
