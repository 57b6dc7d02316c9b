#include "agent/core/nan_lines.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr NanLines::Time kBegin{};

TEST(NanLines, OfEachNameThereIsOneAtATime) {
  std::set<int> ranks;  // whose loss is NaN
  const auto still = [&](int rank) { return ranks.contains(rank); };
  NanLines lines;
  ranks = {3, 4};
  EXPECT_EQ(lines.line("loss", 3, 10, kBegin, still), 0);
  EXPECT_EQ(lines.line("loss", 4, 11, kBegin + 60s, still), std::nullopt);
  EXPECT_EQ(lines.line("norm", 4, 10, kBegin, still), 0) << "another name";
  EXPECT_EQ(lines.line("loss", 3, 20, kBegin + 60s, still), 0) << "it was finite meanwhile";
  ranks = {4};
  EXPECT_EQ(lines.line("loss", 4, 20, kBegin + 120s, still), std::nullopt)
      << "rank 3 has told of that step";
  EXPECT_EQ(lines.line("loss", 4, 21, kBegin + 120s, still), 0) << "rank 3 has another value now";
  EXPECT_EQ(lines.line("loss", 3, 22, kBegin + 180s, still), std::nullopt);
}

TEST(NanLines, AValueThatFlapsHasALineInTenSecondsAndTheNextOneCounts) {
  const auto still = [](int) { return true; };
  NanLines lines;
  EXPECT_EQ(lines.line("loss", 3, 1, kBegin, still), 0);
  EXPECT_EQ(lines.line("loss", 3, 3, kBegin + 1s, still), std::nullopt);
  EXPECT_EQ(lines.line("loss", 4, 3, kBegin + 1s, still), std::nullopt) << "it is not counted";
  EXPECT_EQ(lines.line("loss", 3, 5, kBegin + 9999ms, still), std::nullopt);
  EXPECT_EQ(lines.line("norm", 3, 5, kBegin + 9999ms, still), 0) << "another name";
  EXPECT_EQ(lines.line("loss", 3, 7, kBegin + 10s, still), 2);
  EXPECT_EQ(lines.line("loss", 3, 9, kBegin + 20s, still), 0);
}

TEST(NanLines, ThereAreNotAnyNumberOfNames) {
  const auto still = [](int) { return false; };
  NanLines lines;
  for (std::size_t i = 0; i < NanLines::kNamesMax; ++i) {
    EXPECT_EQ(lines.line(std::to_string(i), 0, 1, kBegin, still), 0);
  }
  EXPECT_EQ(lines.line("one more", 0, 1, kBegin, still), std::nullopt);
  EXPECT_EQ(lines.line("1", 0, 2, kBegin + 10s, still), 0);
}

}  // namespace
}  // namespace ddprun::agent
