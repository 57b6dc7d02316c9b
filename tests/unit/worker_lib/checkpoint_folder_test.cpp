#include "worker_lib/src/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "temp_folder.h"
#include "worker_lib/src/safetensors.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string checkpoint_bytes(const std::string& mark) {
  return safetensors::pack({{{"ddprun_format", "1"}, {"mark", mark}}, {{"a", "U8", {4}, "data"}}});
}

class CheckpointFolderTest : public testing::Test {
 protected:
  CheckpointFolderTest() { EXPECT_TRUE(folder_.prepare()); }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(temp_.path() + "/ckpt")) {
      all.push_back(entry.path().filename().string());
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string path(const std::string& name) const { return temp_.path() + "/ckpt/" + name; }

  test::TempFolder temp_;
  CheckpointFolder folder_{temp_.path() + "/ckpt", 2};
};

constexpr const char* kStep1 = "step-000000000001.safetensors";
constexpr const char* kStep2 = "step-000000000002.safetensors";
constexpr const char* kStep3 = "step-000000000003.safetensors";

TEST_F(CheckpointFolderTest, EmptyMeansAFreshStart) {
  const auto search = folder_.newest_whole();
  ASSERT_TRUE(search);
  EXPECT_FALSE(search->found);
  EXPECT_THAT(search->warnings, testing::IsEmpty());
}

TEST_F(CheckpointFolderTest, KeepsTheLastTwo) {
  for (int step = 1; step <= 3; ++step) {
    ASSERT_TRUE(folder_.write(step, checkpoint_bytes(std::to_string(step))));
  }
  EXPECT_THAT(names(), testing::ElementsAre(kStep2, kStep3));
  const auto search = folder_.newest_whole();
  ASSERT_TRUE(search && search->found);
  EXPECT_EQ(search->found->path, path(kStep3));
  EXPECT_EQ(search->found->bytes, checkpoint_bytes("3"));
}

TEST_F(CheckpointFolderTest, StepsAreOrderedByNumber) {
  ASSERT_TRUE(folder_.write(10, checkpoint_bytes("10")));
  ASSERT_TRUE(folder_.write(9, checkpoint_bytes("9")));
  const auto search = folder_.newest_whole();
  ASSERT_TRUE(search && search->found);
  EXPECT_THAT(search->found->path, HasSubstr("0010.safetensors"));
}

TEST_F(CheckpointFolderTest, TornAtAnyByteTheOneBeforeItIsUsedAndTheTornOneNamed) {
  const std::string whole = checkpoint_bytes("2");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_TRUE(folder_.write(1, checkpoint_bytes("1")));
    test::write(path(kStep2), whole.substr(0, size));
    const auto search = folder_.newest_whole();
    ASSERT_TRUE(search && search->found) << size;
    EXPECT_EQ(search->found->path, path(kStep1));
    ASSERT_EQ(search->warnings.size(), 1u);
    EXPECT_THAT(search->warnings[0], HasSubstr(path(kStep2)));
    EXPECT_THAT(names(), testing::ElementsAre(kStep1, std::string(kStep2) + ".damaged"));
  }
}

TEST_F(CheckpointFolderTest, AFlippedBitAnywhereIsNoticed) {
  const std::string whole = checkpoint_bytes("2");
  ASSERT_TRUE(folder_.write(1, checkpoint_bytes("1")));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    test::write(path(kStep2), damaged);
    const auto search = folder_.newest_whole();
    ASSERT_TRUE(search && search->found) << at;
    EXPECT_EQ(search->found->path, path(kStep1)) << at;
  }
}

TEST_F(CheckpointFolderTest, NoneWholeIsAnErrorThatNamesThemAndLeavesThem) {
  test::write(path(kStep1), "");
  test::write(path(kStep2), checkpoint_bytes("2").substr(0, 100));
  for (int again = 0; again < 2; ++again) {  // a restarted group must not begin from nothing
    const auto search = folder_.newest_whole();
    ASSERT_FALSE(search);
    EXPECT_EQ(search.error().code, ErrorCode::kDataLoss);
    EXPECT_THAT(search.error().message, HasSubstr(path(kStep1)));
    EXPECT_THAT(search.error().message, HasSubstr(path(kStep2)));
  }
}

TEST_F(CheckpointFolderTest, PrepareRemovesWhatACrashLeftUnfinished) {
  test::write(path(std::string(kStep1) + ".unfinished"), "half");
  test::write(path("notes.unfinished"), "the user's");
  ASSERT_TRUE(folder_.prepare());
  EXPECT_THAT(names(), testing::ElementsAre("notes.unfinished"));
}

TEST_F(CheckpointFolderTest, OtherFilesAreLeftAlone) {
  test::write(path("step-best.safetensors"), "the user's");
  test::write(path("readme.txt"), "the user's");
  for (int step = 1; step <= 3; ++step) ASSERT_TRUE(folder_.write(step, checkpoint_bytes("x")));
  EXPECT_THAT(names(), testing::ElementsAre("readme.txt", kStep2, kStep3, "step-best.safetensors"));
}

TEST_F(CheckpointFolderTest, AFileInItsPlaceIsAnError) {
  test::write(temp_.file("file"), "");
  const auto ready = CheckpointFolder(temp_.file("file"), 2).prepare();
  ASSERT_FALSE(ready);
  EXPECT_THAT(ready.error().message, HasSubstr(temp_.file("file")));
  const auto below = CheckpointFolder(temp_.file("file") + "/x", 2).prepare();
  ASSERT_FALSE(below);
  EXPECT_THAT(below.error().message, HasSubstr("cannot be created"));
}

}  // namespace
}  // namespace ddprun
