// Durations, lists, ranks and indented lines, as every message has them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/indented.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

TEST(Durations, ALimitIsShownExactly) {
  EXPECT_EQ(duration_text(0ms), "0 s");
  EXPECT_EQ(duration_text(300ms), "300 ms");
  EXPECT_EQ(duration_text(2500ms), "2.5 s");
  EXPECT_EQ(duration_text(2050ms), "2.05 s");
  EXPECT_EQ(duration_text(600s), "600 s");
}

TEST(Durations, WhatWasMeasuredIsCutToWhatMatters) {
  EXPECT_EQ(time_in_words(-1s), "0 ms");
  EXPECT_EQ(time_in_words(0s), "0 ms");
  EXPECT_EQ(time_in_words(999'999us), "999 ms");
  EXPECT_EQ(time_in_words(1'200ms), "1.2 s");
  EXPECT_EQ(time_in_words(9'999ms), "9.9 s");
  EXPECT_EQ(time_in_words(59'999ms), "59.9 s");
  EXPECT_EQ(time_in_words(60s), "1 min 00 s");
  EXPECT_EQ(time_in_words(185s), "3 min 05 s");
  EXPECT_EQ(time_in_words(7'384s), "2 h 03 min 04 s");
  EXPECT_EQ(time_in_words(25h), "25 h 00 min 00 s");
}

TEST(Lists, AreJoinedAndCounted) {
  EXPECT_EQ(joined(Strings{}), "");
  EXPECT_EQ(joined(Strings{"a"}), "a");
  EXPECT_EQ(joined(Strings{"", "b", "b"}, "-"), "-b-b");
  EXPECT_EQ(joined(std::vector<int>{3, 1}), "3, 1");
  EXPECT_EQ(joined_some({"a", "b"}, 2), "a, b");
  EXPECT_EQ(joined_some({"a", "b", "c", "d"}, 2), "a, b and 2 more");
  EXPECT_EQ(joined_some({"a", "b", "c"}, 2, "more hosts"), "a, b and 1 more hosts");
  EXPECT_EQ(counted(0, "node"), "0 nodes");
  EXPECT_EQ(counted(1, "node"), "1 node");
}

TEST(Ranks, AreShortHoweverManyThereAre) {
  EXPECT_EQ(number_ranges({}, ","), "");
  EXPECT_EQ(number_ranges({0, 1, 2, 8}, ","), "0-2,8");
  EXPECT_EQ(rank_ranges({3}), "rank 3");
  EXPECT_EQ(rank_ranges({0, 2, 3, 4, 5}), "ranks 0, 2-5");
  EXPECT_EQ(ranks_in_words({3}), "rank 3");
  EXPECT_EQ(ranks_in_words({0, 1}), "ranks 0 and 1");
  EXPECT_EQ(ranks_in_words({0, 1, 2, 3, 4, 5}), "ranks 0, 1, 2, 3, 4 and 5");
  EXPECT_EQ(ranks_in_words({0, 1, 2, 3, 4, 5, 9, 10}), "ranks 0, 1, 2, 3, 4, 5 and 2 more");
}

TEST(Indented, EachLineIs) {
  EXPECT_EQ(indented("", "  "), "");
  EXPECT_EQ(indented("a", "  "), "  a\n");
  EXPECT_EQ(indented("a\n\nb\n", "  "), "  a\n  \n  b\n");
}

}  // namespace
}  // namespace ddprun
