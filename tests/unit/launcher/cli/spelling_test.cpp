#include "launcher/cli/text.h"

#include <gtest/gtest.h>

namespace ddprun::cli {
namespace {

TEST(Spelling, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("tee", "tee"), 0u);
  EXPECT_EQ(edit_distance("", "tee"), 3u);
  EXPECT_EQ(edit_distance("tea", "tee"), 1u);
  EXPECT_EQ(edit_distance("ete", "tee"), 1u) << "neighbours swapped are one edit";
  EXPECT_EQ(edit_distance("rank", "ranks"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Spelling, FindsTheNearestAndNothingFarAway) {
  const std::vector<std::string_view> names = {"tee", "log-dir", "max-restarts"};
  EXPECT_EQ(nearest("tea", names), "tee");
  EXPECT_EQ(nearest("logdir", names), "log-dir");
  EXPECT_EQ(nearest("max-restart", names), "max-restarts");
  EXPECT_EQ(nearest("backend", names), "");
  EXPECT_EQ(nearest("", names), "");
}

}  // namespace
}  // namespace ddprun::cli
