// Where a control group of the agent's workers can be: for trees of /proc and /sys as systems have
// them. What the kernel does with one is in tests/integration.
#include "agent/process/control_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct System {
  std::string cgroup;
  std::string mountinfo;
};

Result<std::string> path_on(const System& system, const std::string& controllers_folder = "") {
  const TemporaryTree tree;
  tree.write("proc/self/mountinfo", system.mountinfo);
  if (!controllers_folder.empty()) {
    tree.write(controllers_folder + "/cgroup.subtree_control", "cpu memory\n");
  }
  return ControlGroup::new_path(system.cgroup, tree.path());
}

const std::string kPid = std::to_string(::getpid());

TEST(ControlGroupPath, IsBelowTheAgentsOwnGroup) {
  const System systems[] = {
      {"0::/user.slice/u.scope\n",
       "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"},
      // Both versions, and a mount that is something else.
      {"4:memory:/jobs/7\n1:name=systemd:/\n0::/user.slice/u.scope\n",
       "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
       "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
       "41 31 0:38 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"},
      // A container that sees a part of the hierarchy, and names of the whole.
      {"0::/docker/4711/user.slice/u.scope\n",
       "31 23 0:28 /docker/4711 /sys/fs/cgroup rw shared:9 master:3 - cgroup2 cgroup rw\n"},
  };
  for (const System& each : systems) {
    const auto path = path_on(each);
    ASSERT_TRUE(path) << path.error().to_string();
    EXPECT_THAT(*path, StartsWith("/sys/fs/cgroup/user.slice/u.scope/ddprun-" + kPid + "-"));
  }
  const auto at_the_top = path_on({"0::/\n", "41 31 0:38 / /cg rw,relatime - cgroup2 none rw\n"});
  ASSERT_TRUE(at_the_top);
  EXPECT_THAT(*at_the_top, StartsWith("/cg/ddprun-" + kPid + "-"));
}

TEST(ControlGroupPath, IsNoneWhereTheAgentsGroupIsNotSeen) {
  const std::string mount = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
  const System systems[] = {
      {"", ""},
      {"4:memory:/jobs/7\n", mount},                       // version 1 alone
      {"0::/a\n", "31 23 0:28 / /sys rw - tmpfs t rw\n"},  // not mounted
      {"0::/../other\n", mount},                           // outside of the namespace
      {"0::/docker/4712\n", "31 23 0:28 /docker/47 /sys/fs/cgroup rw - cgroup2 c rw\n"},
  };
  for (const System& each : systems) {
    const auto path = path_on(each);
    ASSERT_FALSE(path) << *path;
    EXPECT_THAT(path.error().message, HasSubstr("no control groups of version 2"));
  }
}

// It would have limits and shares of its own, and processor time would be shared out otherwise.
TEST(ControlGroupPath, IsNoneWhereItWouldHaveControllers) {
  const auto path =
      path_on({"0::/\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"}, "sys/fs/cgroup");
  ASSERT_FALSE(path);
  EXPECT_THAT(path.error().message, HasSubstr("gives its controllers"));
}

TEST(ControlGroupMake, IsAnErrorWhereThereAreNone) {
  const TemporaryTree tree;
  const auto group = ControlGroup::make(tree / "group");
  ASSERT_FALSE(group);
  EXPECT_NE(::access((tree / "group").c_str(), F_OK), 0) << "a folder is left";
}

}  // namespace
}  // namespace ddprun::agent
