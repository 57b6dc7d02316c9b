#include "worker_lib/checkpoint/state_text.h"

#include <gtest/gtest.h>

#include <limits>

#include "ddprun/error.h"

namespace ddprun {
namespace {

TEST(StateText, GivesBackEveryBitOfANumber) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double values[] = {0.1, -1e-310, 1.0 / 3, kInfinity, -kInfinity, 0.0, 1e308, 0x1.8p-1074};
  for (const double value : values) {
    const StateText state =
        StateText::parse("a part", StateText("a part").put("x", value).to_string());
    EXPECT_EQ(state.number("x"), value);
  }
}

TEST(StateText, KeepsAnyText) {
  const std::string text = "a \"quoted\" \n line, ü";
  const StateText state =
      StateText::parse("a part", StateText("a part").put("x", text).to_string());
  EXPECT_EQ(state.text("x"), text);
  EXPECT_TRUE(state.has("x"));
  EXPECT_FALSE(state.has("y"));
}

TEST(StateText, KeepsAMapOfNumbersUnderOneName) {
  const std::map<std::string, double> numbers{{"a \"b\".c", 0.1}, {"", -2}};
  const StateText state =
      StateText::parse("a part", StateText("a part").put("x", numbers).put("y", 1.0).to_string());
  EXPECT_EQ(state.numbers("x"), numbers);
}

TEST(StateText, NamesThePartAndTheValueThatIsWrong) {
  const auto error_of = [](auto&& read) -> std::string {
    try {
      read();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  const StateText state = StateText::parse("a part", R"({"x": "12a", "y": "3"})");
  EXPECT_EQ(state.integer("y"), 3);
  EXPECT_NE(error_of([&] { state.integer("x"); }).find("a part has x = '12a'"), std::string::npos);
  EXPECT_NE(error_of([&] { state.number("x"); }).find("no number"), std::string::npos);
  EXPECT_NE(error_of([&] { state.number("z"); }).find("lacks 'z'"), std::string::npos);
  EXPECT_NE(error_of([] { StateText::parse("a part", "[1"); }).find("state of a part"),
            std::string::npos);
  EXPECT_NE(error_of([] { StateText::parse("a part", R"({"x": 1})"); }).find("no string"),
            std::string::npos);
}

}  // namespace
}  // namespace ddprun
