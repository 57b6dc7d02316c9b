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
  EXPECT_TRUE(lines.is_told("loss", 3, still));
  EXPECT_FALSE(lines.is_told("loss", 4, still));
  EXPECT_TRUE(lines.is_told("norm", 4, still)) << "another name";
  EXPECT_TRUE(lines.is_told("loss", 3, still)) << "it was finite meanwhile";
  ranks = {4};
  EXPECT_TRUE(lines.is_told("loss", 4, still)) << "rank 3 has another one now";
  EXPECT_FALSE(lines.is_told("loss", 3, still));
}

TEST(NanLines, ThereAreNotAnyNumberOfNames) {
  const auto still = [](int) { return false; };
  NanLines lines;
  for (std::size_t i = 0; i < NanLines::kNamesMax; ++i) {
    EXPECT_TRUE(lines.is_told(std::to_string(i), 0, still));
  }
  EXPECT_FALSE(lines.is_told("one more", 0, still));
  EXPECT_TRUE(lines.is_told("1", 0, still));
}

}  // namespace
}  // namespace ddprun::agent
