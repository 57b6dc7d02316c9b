// Where control sockets are, and whose. What is wrong there is tested by tests/integration/control_test.
#include "agent/query/control_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST(ControlFolder, IsTheRuntimeFolderElseOneInTmp) {
  EXPECT_THAT(control_folders({{"XDG_RUNTIME_DIR", "/run/mine"}}, 7),
              ElementsAre("/run/mine/ddprun", "/run/user/7/ddprun", "/tmp/ddprun-7"));
  EXPECT_THAT(control_folders({{"XDG_RUNTIME_DIR", "/run/user/7"}}, 7),
              ElementsAre("/run/user/7/ddprun", "/tmp/ddprun-7"));
  EXPECT_THAT(control_folders({{"XDG_RUNTIME_DIR", "not/absolute"}}, 7),
              ElementsAre("/run/user/7/ddprun", "/tmp/ddprun-7"));
  EXPECT_THAT(
      control_folders({{"XDG_RUNTIME_DIR", "/run/mine"}, {"DDPRUN_CONTROL_DIR", "/c/d"}}, 7),
      ElementsAre("/c/d"));
  EXPECT_THAT(control_folders({}, 7), ElementsAre("/run/user/7/ddprun", "/tmp/ddprun-7"));
}

TEST(ControlFolder, NamesAreFilesWhateverTheIdIs) {
  EXPECT_EQ(control_name("train-7.b"), "train-7.b.sock");
  EXPECT_EQ(control_name("../../etc/x y"), "_._.._etc_x_y.sock");
  EXPECT_EQ(control_name(".hidden"), "_hidden.sock");
  EXPECT_EQ(control_name(""), ".sock");
  EXPECT_EQ(control_name(std::string(500, 'x')).size(), 65U);
  EXPECT_EQ(control_name("train", 42), "train.42.sock");
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ddprun_control_test_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    auto folder = open_control_folder(root_ + "/ddprun", ::geteuid(), /*makes_it=*/true);
    ASSERT_TRUE(folder) << folder.error().to_string();
    folder_ = std::move(*folder);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<BoundControl> bind(pid_t pid) { return bind_control(folder_, "job", pid, ::geteuid()); }

  std::string root_;
  rdzv::UniqueFd folder_;
};

// A killed job's socket stays, and its id may never come again.
TEST_F(Folder, IsSweptByTheJobsThatCome) {
  const auto age = [this](const std::string& name, std::time_t seconds) {
    const timespec when{::time(nullptr) - seconds, 0};
    const timespec times[2] = {when, when};
    ASSERT_EQ(::utimensat(folder_.get(), name.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  };
  const auto names = [this] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(root_ + "/ddprun")) {
      found.push_back(entry.path().filename());
    }
    return found;
  };
  const auto live = bind_control(folder_, "live", 1, ::geteuid());
  ASSERT_TRUE(live);
  for (const char* id : {"old", "new"}) ASSERT_TRUE(bind_control(folder_, id, 1, ::geteuid()));
  age("live.sock", 3600);
  age("old.sock", 3600);
  ASSERT_TRUE(bind_control(folder_, "next", 1, ::geteuid()));
  EXPECT_THAT(names(), UnorderedElementsAre("live.sock", "new.sock", "next.sock"));
  age("new.sock", 3600);
  remove_left_over(folder_, control_sockets_in(folder_), ::geteuid());
  EXPECT_THAT(names(), UnorderedElementsAre("live.sock", "next.sock"));
}

TEST_F(Folder, IsMadeForItsOwnerOnly) {
  struct stat found {};
  ASSERT_EQ(::stat((root_ + "/ddprun").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0700U);
}

TEST_F(Folder, TheFirstGetsTheNameOfTheJobAndTheNextOneItsOwn) {
  const auto first = bind(1);
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(first->name, "job.sock");
  const auto second = bind(2);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->name, "job.2.sock");
  EXPECT_TRUE(connect_control(folder_, "job.sock", ::geteuid()));
  EXPECT_TRUE(connect_control(folder_, "job.2.sock", ::geteuid()));
  const auto same_pid = bind(2);  // of another pid namespace
  ASSERT_FALSE(same_pid);
  EXPECT_EQ(same_pid.error().code, ErrorCode::kAddressInUse);
}

TEST_F(Folder, WhatADeadOneLeftIsReplaced) {
  { const auto dead = bind(1); }
  const auto refused = connect_control(folder_, "job.sock", ::geteuid());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  const auto next = bind(2);
  ASSERT_TRUE(next) << next.error().to_string();
  EXPECT_EQ(next->name, "job.sock");
  EXPECT_TRUE(connect_control(folder_, "job.sock", ::geteuid()));
}

TEST_F(Folder, WhatIsNoSocketIsLeftAlone) {
  ASSERT_EQ(::symlink("/etc/passwd", (root_ + "/ddprun/job.sock").c_str()), 0);
  const auto refused = connect_control(folder_, "job.sock", ::geteuid());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  const auto bound = bind(3);
  ASSERT_TRUE(bound);
  EXPECT_EQ(bound->name, "job.3.sock");
  EXPECT_TRUE(std::filesystem::is_symlink(root_ + "/ddprun/job.sock"));
}

TEST_F(Folder, ALongPathIsNoTrouble) {
  const std::string deep = root_ + "/" + std::string(120, 'd');
  ASSERT_TRUE(std::filesystem::create_directory(deep));
  const auto folder = open_control_folder(deep + "/ddprun", ::geteuid(), /*makes_it=*/true);
  ASSERT_TRUE(folder) << folder.error().to_string();
  const auto bound = bind_control(*folder, "job", 1, ::geteuid());
  ASSERT_TRUE(bound) << bound.error().to_string();
  EXPECT_TRUE(connect_control(*folder, bound->name, ::geteuid()));
}

TEST_F(Folder, ARuntimeFolderOfAnotherUserIsNotWrittenTo) {
  const auto other = open_control_folder(root_ + "/theirs", ::geteuid() + 1, /*makes_it=*/true);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(root_ + "/theirs"));
}

}  // namespace
}  // namespace ddprun::agent
