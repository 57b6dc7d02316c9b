#include "agent/core/nan_lines.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ddprun::agent {
namespace {

TEST(NanLines, OfEachNameThereIsOneAtATime) {
  std::set<int> ranks;  // whose loss is NaN
  const auto still = [&](int rank) { return ranks.contains(rank); };
  NanLines lines;
  ranks = {3, 4};
  EXPECT_TRUE(lines.is_told("loss", 3, 10, still));
  EXPECT_FALSE(lines.is_told("loss", 4, 11, still));
  EXPECT_TRUE(lines.is_told("norm", 4, 10, still)) << "another name";
  EXPECT_TRUE(lines.is_told("loss", 3, 20, still)) << "it was finite meanwhile";
  ranks = {4};
  EXPECT_FALSE(lines.is_told("loss", 4, 20, still)) << "rank 3 has told of that step";
  EXPECT_TRUE(lines.is_told("loss", 4, 21, still)) << "rank 3 has another value now";
  EXPECT_FALSE(lines.is_told("loss", 3, 22, still));
}

TEST(NanLines, ThereAreNotAnyNumberOfNames) {
  const auto still = [](int) { return false; };
  NanLines lines;
  for (std::size_t i = 0; i < NanLines::kNamesMax; ++i) {
    EXPECT_TRUE(lines.is_told(std::to_string(i), 0, 1, still));
  }
  EXPECT_FALSE(lines.is_told("one more", 0, 1, still));
  EXPECT_TRUE(lines.is_told("1", 0, 2, still));
}

}  // namespace
}  // namespace ddprun::agent
