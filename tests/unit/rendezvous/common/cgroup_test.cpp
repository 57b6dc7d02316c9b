// Control groups as trees of files.
#include "rendezvous/common/cgroup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::cgroup {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Cgroup, NamesEveryGroupFromTheInmostOut) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "5:cpu,memory:/a/b\n3:pids:/c\n0::/d\n");
  const std::string mount = tree / "sys/fs/cgroup";
  EXPECT_THAT(folders("memory", tree.path()),
              ElementsAre(mount + "/memory/a/b", mount + "/memory/a", mount + "/memory",
                          mount + "/d", mount));
}

TEST(Cgroup, RoomIsThatOfTheGroupWithTheLeast) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/slice/job\n");
  const std::string slice = "sys/fs/cgroup/slice/";
  tree.write(slice + "job/memory.max", "9000\n");
  tree.write(slice + "job/memory.current", "1000\n");
  tree.write(slice + "memory.max", "5000\n");
  tree.write(slice + "memory.current", "4800\n");
  tree.write(slice + "memory.stat", "anon 2500\ninactive_file 500\nactive_file 1500\n");
  const auto room = memory_room(tree.path());
  ASSERT_TRUE(room);
  EXPECT_EQ(room->folder, tree / "sys/fs/cgroup/slice");
  EXPECT_EQ(room->limit, 5000U);
  EXPECT_EQ(room->left, 2200U) << "files are given back";
}

TEST(Cgroup, ReadsVersionOneAndItsWordForNoLimit) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n");
  const std::string memory = "sys/fs/cgroup/memory/";
  tree.write(memory + "memory.limit_in_bytes", "9223372036854771712\n");
  tree.write(memory + "memory.usage_in_bytes", "700\n");
  EXPECT_FALSE(memory_room(tree.path()));
  tree.write(memory + "memory.limit_in_bytes", "1000\n");
  tree.write(memory + "memory.stat", "inactive_file 1\ntotal_inactive_file 100\n");
  EXPECT_EQ(memory_room(tree.path())->left, 400U);
}

TEST(Cgroup, MoreUsedThanAllowedLeavesNothing) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/\n");
  tree.write("sys/fs/cgroup/memory.max", "1000\n");
  tree.write("sys/fs/cgroup/memory.current", "1200\n");
  EXPECT_EQ(memory_room(tree.path())->left, 0U);
}

TEST(Cgroup, NoFilesNoLimit) {
  const TemporaryTree tree;
  EXPECT_THAT(folders("memory", tree.path()), IsEmpty());
  EXPECT_FALSE(memory_room(tree.path()));
}

}  // namespace
}  // namespace ddprun::cgroup
