#include "worker_lib/checkpoint/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/worker_lib/checkpoint/pack.h"
#include "tests/unit/worker_lib/outcome.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string checkpoint_bytes(const std::string& mark) {
  return safetensors::pack({{{"ddprun_format", "1"}, {"mark", mark}}, {{"a", "U8", {4}, "data"}}});
}

class CheckpointFolderTest : public testing::Test {
 protected:
  CheckpointFolderTest() { folder_.prepare(); }

  // Of files; the links are asked for by what they name.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(temp_.path() + "/ckpt")) {
      if (!entry.is_symlink()) all.push_back(entry.path().filename().string());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string path(const std::string& name) const { return temp_.path() + "/ckpt/" + name; }
  std::string latest() const { return named_by("latest.safetensors"); }
  std::string best() const { return named_by("best.safetensors"); }
  std::string named_by(const std::string& link) const {
    std::error_code none;
    return fs::read_symlink(path(link), none);
  }
  void write_step(int step, bool is_best = false) {
    EXPECT_THAT(folder_.write(step, {checkpoint_bytes(std::to_string(step))}, is_best),
                testing::IsEmpty());
  }

  test::TempFolder temp_;
  CheckpointFolder folder_{temp_.path() + "/ckpt", 2};
};

constexpr const char* kStep1 = "step-000000000001.safetensors";
constexpr const char* kStep2 = "step-000000000002.safetensors";
constexpr const char* kStep3 = "step-000000000003.safetensors";

TEST_F(CheckpointFolderTest, EmptyMeansAFreshStart) {
  const auto search = folder_.newest_whole();
  EXPECT_FALSE(search.found);
  EXPECT_THAT(search.warnings, testing::IsEmpty());
}

TEST_F(CheckpointFolderTest, KeepsTheLastTwo) {
  for (int step = 1; step <= 3; ++step) {
    folder_.write(step, {checkpoint_bytes(std::to_string(step))});
  }
  EXPECT_THAT(names(), testing::ElementsAre(kStep2, kStep3));
  const auto search = folder_.newest_whole();
  ASSERT_TRUE(search.found.has_value());
  EXPECT_EQ(search.found->path, path(kStep3));
  const std::string bytes = checkpoint_bytes("3");
  EXPECT_EQ(search.found->file.read(0, bytes.size() + 1), bytes);
  EXPECT_EQ(search.found->head, bytes.substr(0, search.found->head.size()));
}

TEST_F(CheckpointFolderTest, StepsAreOrderedByNumber) {
  folder_.write(10, {checkpoint_bytes("10")});
  folder_.write(9, {checkpoint_bytes("9")});
  const auto search = folder_.newest_whole();
  ASSERT_TRUE(search.found.has_value());
  EXPECT_THAT(search.found->path, HasSubstr("0010.safetensors"));
}

TEST_F(CheckpointFolderTest, TornAtAnyByteTheOneBeforeItIsUsedAndTheTornOneNamed) {
  const std::string whole = checkpoint_bytes("2");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder_.write(1, {checkpoint_bytes("1")});
    test::write(path(kStep2), whole.substr(0, size));
    const auto search = folder_.newest_whole();
    ASSERT_TRUE(search.found.has_value()) << size;
    EXPECT_EQ(search.found->path, path(kStep1));
    ASSERT_EQ(search.warnings.size(), 1u);
    EXPECT_THAT(search.warnings[0], HasSubstr(path(kStep2)));
    EXPECT_THAT(names(), testing::ElementsAre(kStep1, std::string(kStep2) + ".damaged"));
  }
}

TEST_F(CheckpointFolderTest, AFlippedBitAnywhereIsNoticed) {
  const std::string whole = checkpoint_bytes("2");
  folder_.write(1, {checkpoint_bytes("1")});
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    test::write(path(kStep2), damaged);
    const auto search = folder_.newest_whole();
    ASSERT_TRUE(search.found.has_value()) << at;
    EXPECT_EQ(search.found->path, path(kStep1)) << at;
  }
}

TEST_F(CheckpointFolderTest, NoneWholeIsAnErrorThatNamesThemAndLeavesThem) {
  test::write(path(kStep1), "");
  test::write(path(kStep2), checkpoint_bytes("2").substr(0, 100));
  for (int again = 0; again < 2; ++again) {  // a restarted group must not begin from nothing
    const auto search = test::outcome([this] { return folder_.newest_whole(); });
    ASSERT_FALSE(search);
    EXPECT_EQ(search.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(search.error().message, HasSubstr(path(kStep1)));
    EXPECT_THAT(search.error().message, HasSubstr(path(kStep2)));
  }
}

TEST_F(CheckpointFolderTest, PrepareRemovesWhatACrashLeftUnfinished) {
  test::write(path(std::string(kStep1) + ".unfinished"), "half");
  test::write(path("notes.unfinished"), "the user's");
  folder_.prepare();
  EXPECT_THAT(names(), testing::ElementsAre("notes.unfinished"));
}

TEST_F(CheckpointFolderTest, OtherFilesAreLeftAlone) {
  test::write(path("step-best.safetensors"), "the user's");
  test::write(path("readme.txt"), "the user's");
  for (int step = 1; step <= 3; ++step) folder_.write(step, {checkpoint_bytes("x")});
  EXPECT_THAT(names(), testing::ElementsAre("readme.txt", kStep2, kStep3, "step-best.safetensors"));
}

TEST_F(CheckpointFolderTest, AFileInItsPlaceIsAnError) {
  test::write(temp_.file("file"), "");
  const auto ready = test::outcome([this] { CheckpointFolder(temp_.file("file"), 2).prepare(); });
  ASSERT_FALSE(ready);
  EXPECT_THAT(ready.error().message, HasSubstr(temp_.file("file")));
  const auto below =
      test::outcome([this] { CheckpointFolder(temp_.file("file") + "/x", 2).prepare(); });
  ASSERT_FALSE(below);
  EXPECT_THAT(below.error().message, HasSubstr("cannot be created"));
}

TEST_F(CheckpointFolderTest, LatestNamesTheNewestAndTheBestIsKeptBesideTheLast) {
  write_step(1, /*is_best=*/true);
  EXPECT_EQ(latest(), kStep1);
  EXPECT_EQ(best(), kStep1);
  write_step(2);
  write_step(3);
  EXPECT_EQ(latest(), kStep3);
  EXPECT_EQ(test::read(path("best.safetensors")), checkpoint_bytes("1"));
  EXPECT_THAT(names(), testing::ElementsAre(kStep1, kStep2, kStep3));
  write_step(4, /*is_best=*/true);
  EXPECT_EQ(best(), "step-000000000004.safetensors");
  EXPECT_THAT(names(), testing::ElementsAre(kStep3, best()));
}

TEST_F(CheckpointFolderTest, ABestOneThatACrashLeftWithoutItsLinkGetsIt) {
  write_step(1, /*is_best=*/true);
  write_step(2);
  std::filesystem::create_symlink(kStep2, path("best.safetensors.unfinished"));
  folder_.prepare();
  EXPECT_EQ(best(), kStep2);
  EXPECT_FALSE(std::filesystem::is_symlink(path("best.safetensors.unfinished")));
}

TEST_F(CheckpointFolderTest, ABestOneThatACrashKeptFromAppearingLeavesTheOneBefore) {
  write_step(1, /*is_best=*/true);
  std::filesystem::create_symlink(kStep2, path("best.safetensors.unfinished"));
  folder_.prepare();
  EXPECT_EQ(best(), kStep1);
  EXPECT_FALSE(std::filesystem::is_symlink(path("best.safetensors.unfinished")));
}

TEST_F(CheckpointFolderTest, NoLinkNamesWhatWasSetAside) {
  write_step(1);
  write_step(2, /*is_best=*/true);
  EXPECT_TRUE(folder_.has_best());
  test::write(path(kStep2), "torn");
  folder_.newest_whole();
  EXPECT_EQ(latest(), kStep1);
  EXPECT_EQ(best(), "");
  EXPECT_FALSE(folder_.has_best());
}

// A crash may come between the file's rename and the link's.
TEST_F(CheckpointFolderTest, LatestCatchesUpWhenASearchFindsANewerOne) {
  write_step(1);
  test::write(path(kStep2), checkpoint_bytes("2"));
  EXPECT_EQ(latest(), kStep1);
  folder_.newest_whole();
  EXPECT_EQ(latest(), kStep2);
}

TEST_F(CheckpointFolderTest, AFileWithTheNameOfALinkIsLeftAloneAndSaidOnce) {
  test::write(path("latest.safetensors"), "the user's");
  const auto first = folder_.write(1, {checkpoint_bytes("1")});
  EXPECT_THAT(first, testing::ElementsAre(HasSubstr(path("latest.safetensors"))));
  const auto second = folder_.write(2, {checkpoint_bytes("2")});
  EXPECT_THAT(second, testing::IsEmpty());
  EXPECT_EQ(test::read(path("latest.safetensors")), "the user's");
}

TEST_F(CheckpointFolderTest, WhatLatestNamesStaysUntilItNamesAnother) {
  write_step(1);
  const std::string in_the_way = path("latest.safetensors.unfinished");
  fs::create_directory(in_the_way);
  for (int step = 2; step <= 4; ++step) {
    folder_.write(step, {checkpoint_bytes(std::to_string(step))});
  }
  EXPECT_EQ(test::read(path("latest.safetensors")), checkpoint_bytes("1"));
  fs::remove(in_the_way);
  write_step(5);
  EXPECT_EQ(latest(), "step-000000000005.safetensors");
  EXPECT_FALSE(fs::exists(path(kStep1)));
}

TEST_F(CheckpointFolderTest, TheOneJustWrittenStaysAmongOlderOnesOfHigherSteps) {
  write_step(2);
  write_step(3);
  write_step(1);
  EXPECT_THAT(names(), testing::ElementsAre(kStep1, kStep2, kStep3));
  EXPECT_EQ(latest(), kStep1);
}

TEST_F(CheckpointFolderTest, AFullDiskLeavesTheOneBeforeAndNothingUnfinished) {
  write_step(1);
  fs::create_symlink("/dev/full", path(std::string(kStep2) + ".unfinished"));
  const auto written = test::outcome([this] { return folder_.write(2, {checkpoint_bytes("2")}); });
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kResourceExhausted);
  EXPECT_THAT(written.error().message, HasSubstr(path(kStep2)));
  EXPECT_THAT(names(), testing::ElementsAre(kStep1));
  EXPECT_EQ(latest(), kStep1);
}

// Not set aside, not passed over, no fresh start: what is there may be needed.
TEST_F(CheckpointFolderTest, WhatCannotBeReadIsAnErrorThatNamesIt) {
  write_step(1);
  write_step(2);
  const auto search_as_nobody = [this] {
    const bool is_root = ::geteuid() == 0;
    if (is_root) ::setfsuid(65534);  // of this thread; root may read everything
    auto search = test::outcome([this] { return folder_.newest_whole(); });
    if (is_root) ::setfsuid(0);
    return search;
  };
  ASSERT_EQ(::chmod(temp_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path(kStep2).c_str(), 0), 0);
  const auto file = search_as_nobody();
  ASSERT_FALSE(file);
  EXPECT_THAT(file.error().message, HasSubstr(path(kStep2) + ": Permission denied"));
  EXPECT_THAT(names(), testing::ElementsAre(kStep1, kStep2));

  ASSERT_EQ(::chmod(path("").c_str(), 0300), 0);
  const auto folder = search_as_nobody();
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message, HasSubstr("/ckpt: Permission denied"));
}

}  // namespace
}  // namespace ddprun
