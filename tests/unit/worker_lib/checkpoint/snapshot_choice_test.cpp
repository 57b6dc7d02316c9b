#include "worker_lib/checkpoint/snapshot_choice.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Snapshot = SnapshotOffer::Snapshot;

TEST(SnapshotChoice, IsTheNewestOfOneNode) {
  const auto choice = choose_snapshot({{0, 2, {{5, 2, {0, 1}}, {10, 2, {0, 1}}}}}, 2);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 10);
  EXPECT_EQ(choice->source, 0);
  EXPECT_TRUE(choice->is_data_everywhere && choice->are_parts_in_place);
  EXPECT_FALSE(choose_snapshot({}, 2));
}

TEST(SnapshotChoice, IsOneThatBothNodesHave) {
  const Snapshot old_a{5, 4, {0, 1}};
  const Snapshot new_a{10, 4, {0, 1}};
  const Snapshot old_b{5, 4, {2, 3}};
  const auto choice = choose_snapshot({{0, 2, {new_a, old_a}}, {2, 2, {old_b}}}, 4);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->step, 5);
  EXPECT_TRUE(choice->is_data_everywhere && choice->are_parts_in_place);
  // Nothing in common, and the world is the same: the bits would change.
  EXPECT_FALSE(choose_snapshot({{0, 2, {new_a}}, {2, 2, {old_b}}}, 4));
}

TEST(SnapshotChoice, GivesToNodesThatHaveChangedTheirPlaces) {
  const auto choice = choose_snapshot({{0, 2, {{5, 4, {2, 3}}}}, {2, 2, {{5, 4, {0, 1}}}}}, 4);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->source, 2);  // the text is that of what was rank 0
  EXPECT_TRUE(choice->is_data_everywhere);
  EXPECT_FALSE(choice->are_parts_in_place);
}

TEST(SnapshotChoice, GoesOnWithFewerAndMoreNodes) {
  const auto fewer = choose_snapshot({{0, 2, {{5, 4, {2, 3}}}}}, 2);
  ASSERT_TRUE(fewer);
  EXPECT_TRUE(fewer->is_data_everywhere);
  EXPECT_FALSE(fewer->are_parts_in_place);
  const auto more = choose_snapshot({{0, 2, {{5, 2, {0, 1}}}}, {2, 2, {}}}, 4);
  ASSERT_TRUE(more);
  EXPECT_FALSE(more->is_data_everywhere);
  EXPECT_FALSE(more->are_parts_in_place);
  EXPECT_EQ(more->world_size, 2);
}

// A node was lost, another one has come: the random numbers of two ranks are gone.
TEST(SnapshotChoice, IsNoneWhereTheWorldIsTheSameAndPartsAreMissing) {
  EXPECT_FALSE(choose_snapshot({{0, 2, {{5, 4, {0, 1}}}}, {2, 2, {}}}, 4));
}

}  // namespace
}  // namespace ddprun
