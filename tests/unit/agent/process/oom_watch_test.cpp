#include "agent/process/oom_watch.h"

#include <gtest/gtest.h>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

std::string events(int oom_kills) {
  return "low 0\nhigh 3\nmax 9\noom 7\noom_kill " + std::to_string(oom_kills) +
         "\noom_group_kill 5\n";
}

TEST(OomWatch, TellsOfEveryKillOnce) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/user.slice/job\n");
  const std::string file = "sys/fs/cgroup/user.slice/job/memory.events";
  tree.write(file, events(4));
  OomWatch watch(tree.path());
  watch.begin_round(cgroup::own_groups(tree.path()));
  EXPECT_FALSE(watch.take_kill()) << "those four were before";
  tree.write(file, events(6));
  EXPECT_TRUE(watch.take_kill());
  EXPECT_TRUE(watch.take_kill());
  EXPECT_FALSE(watch.take_kill());
  tree.write(file, events(7));
  watch.begin_round(cgroup::own_groups(tree.path()));
  EXPECT_FALSE(watch.take_kill()) << "of the round before";
}

TEST(OomWatch, ReadsTheCountersOfCgroupV1Too) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "9:name=systemd:/a\n4:cpu,memory:/b\n0::/\n");
  const std::string control = "oom_kill_disable 0\nunder_oom 0\noom_kill ";
  tree.write("sys/fs/cgroup/memory/b/memory.oom_control", control + "0\n");
  OomWatch watch(tree.path());
  watch.begin_round(cgroup::own_groups(tree.path()));
  tree.write("sys/fs/cgroup/memory/b/memory.oom_control", control + "1\n");
  EXPECT_TRUE(watch.take_kill());
}

TEST(OomWatch, FindsTheOwnCgroupOfAContainerThatIsShownTheHostsPath) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/kubepods/pod7/container\n");
  tree.write("sys/fs/cgroup/memory.events", events(0));
  OomWatch watch(tree.path());
  watch.begin_round(cgroup::own_groups(tree.path()));
  tree.write("sys/fs/cgroup/memory.events", events(1));
  EXPECT_TRUE(watch.take_kill());
}

TEST(OomWatch, AsksTheNearestGroupAroundThatCountsMemory) {
  const TemporaryTree tree;
  tree.write("proc/self/cgroup", "0::/user.slice/job/step\n");
  tree.write("sys/fs/cgroup/user.slice/job/memory.events", events(1));
  tree.write("sys/fs/cgroup/user.slice/memory.events", events(1));
  OomWatch watch(tree.path());
  watch.begin_round(cgroup::own_groups(tree.path()));
  tree.write("sys/fs/cgroup/user.slice/memory.events", events(2));
  EXPECT_FALSE(watch.take_kill()) << "of another job";
  tree.write("sys/fs/cgroup/user.slice/job/memory.events", events(2));
  EXPECT_TRUE(watch.take_kill());
}

TEST(OomWatch, SaysNothingWhereThereIsNoCounter) {
  const TemporaryTree tree;
  OomWatch without_cgroups(tree.path());
  without_cgroups.begin_round(cgroup::own_groups(tree.path()));
  EXPECT_FALSE(without_cgroups.take_kill());
  tree.write("sys/fs/cgroup/memory.events", "low 0\n");
  tree.write("proc/self/cgroup", "0::/\n");
  OomWatch without_counter(tree.path());
  without_counter.begin_round(cgroup::own_groups(tree.path()));
  EXPECT_FALSE(without_counter.take_kill());
}

}  // namespace
}  // namespace ddprun::agent
