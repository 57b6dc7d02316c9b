// A rank dies at any point of a training (in forward, in backward, half-way through a message of
// the all-reduce, in the optimizer, in evaluation, and everywhere in the writing of a checkpoint):
// the resumed run ends with the same bits as an undisturbed one. And a full disk is an error on all
// ranks that loses only the checkpoint that did not fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/support/training.h"

namespace ddprun::test {
namespace {
namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kSteps = 30;  // of mortal_training
constexpr seconds kTime{240};

struct Point {
  const char* name;
  bool is_of_rank_zero;  // the only one that comes by there
};
const std::vector<Point> kPoints{
    {"forward", false},    {"backward", false},     {"all_reduce", false},  {"optimizer", false},
    {"evaluation", false}, {"resuming", false},     {"saving", true},       {"half_written", true},
    {"before_sync", true}, {"before_rename", true}, {"after_rename", true}, {"before_link", true},
};

Command mortal_training(int ranks, const std::string& folder, const std::string& when,
                        std::size_t deaths = 0) {
  return ddprun(
      {"--nproc-per-node=" + std::to_string(ranks), "--max-restarts=" + std::to_string(deaths)},
      {DDPRUN_MORTAL_TRAINING, folder, when});
}

std::string best_in(const std::string& folder) {
  return fs::read_symlink(folder + "/best.safetensors");
}

std::vector<std::string> unfinished_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".unfinished") names.push_back(entry.path());
  }
  return names;
}

// One job of which one rank dies in each life, until the points are used up.
void dies_at(const std::vector<Point>& points, int ranks, const std::string& when,
             const std::string& undisturbed, std::mt19937& random) {
  std::string deaths;
  for (std::size_t life = 0; life < points.size(); ++life) {
    const auto step = points[life].name == std::string("resuming")
                          ? 0
                          : 1 + life * (kSteps - 4) / points.size() + random() % 2;
    const auto rank = points[life].is_of_rank_zero ? 0 : random() % static_cast<unsigned>(ranks);
    deaths += (deaths.empty() ? "" : ",") + std::string(points[life].name) + ":" +
              std::to_string(step) + ":" + std::to_string(rank);
  }
  SCOPED_TRACE(deaths + ", written " + when);
  const TemporaryTree folder;
  Job job(mortal_training(ranks, folder.path(), when, points.size()),
          {.environment = {{"DDPRUN_DEATHS", deaths}}});
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  const std::string err = job.err();
  for (const Point& point : points) {
    EXPECT_THAT(err, HasSubstr(std::string("dies: ") + point.name + "\n"));
  }
  EXPECT_EQ(last_step_in(folder.path()), kSteps);
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed, folder.path())) << err;
  EXPECT_EQ(best_in(undisturbed), best_in(folder.path()));
  EXPECT_THAT(unfinished_in(folder.path()), IsEmpty());
  EXPECT_THAT(job.left_over(), IsEmpty());
}

class Deaths : public ::testing::TestWithParam<int> {};

TEST_P(Deaths, AtAnyPointLeavesTheSameBits) {
  const int ranks = GetParam();
  const TemporaryTree undisturbed;
  Job alone(mortal_training(ranks, undisturbed.path(), "now"));
  ASSERT_EQ(alone.wait(kTime), exited(0)) << alone.err();
  ASSERT_EQ(last_step_in(undisturbed.path()), kSteps);

  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < (full_tests() ? 6 : 1); ++round) {
    std::vector<Point> points = kPoints;
    if (!full_tests()) {  // a third of them for each number of ranks
      points.clear();
      for (std::size_t i = 0; i < kPoints.size(); ++i) {
        if (static_cast<int>(i % 3) == ranks % 3) points.push_back(kPoints[i]);
      }
    }
    // In any order, but nothing can be resumed before the first checkpoint.
    std::shuffle(points.begin(), points.end(), random);
    std::stable_partition(points.begin(), points.end(),
                          [](const Point& point) { return point.name != std::string("resuming"); });
    const bool is_later = (round + ranks) % 2 == 0;
    dies_at(points, ranks, is_later ? "later" : "now", undisturbed.path(), random);
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Deaths, ::testing::Values(2, 3, 4));

// Rank 0 dies when the best checkpoint is there and is not named so yet; all begin again from that one.
TEST(Death, BeforeTheBestCheckpointIsNamedDoesNotLoseIt) {
  const TemporaryTree undisturbed;
  Job alone(mortal_training(2, undisturbed.path(), "now"));
  ASSERT_EQ(alone.wait(kTime), exited(0)) << alone.err();
  const std::string best = best_in(undisturbed.path());
  const int step = std::stoi(best.substr(best.find('-') + 1));
  for (const char* const when : {"now", "later"}) {
    const TemporaryTree folder;
    Job job(mortal_training(2, folder.path(), when, 1),
            {.environment = {{"DDPRUN_DEATHS", "after_rename:" + std::to_string(step) + ":0"}}});
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("dies: after_rename\n"));
    EXPECT_EQ(best_in(folder.path()), best);
  }
}

// A file system of its own for a folder, of so many kB.
class SmallDisk {
 public:
  SmallDisk(std::string path, int kilobytes) : path_(std::move(path)) {
    fs::create_directory(path_);
    is_there_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, size(kilobytes).c_str()) == 0;
  }
  ~SmallDisk() {
    if (is_there_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool is_there() const { return is_there_; }
  bool grow(int kilobytes) const {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT, size(kilobytes).c_str()) == 0;
  }

 private:
  static std::string size(int kilobytes) { return "size=" + std::to_string(kilobytes) + "k"; }

  std::string path_;
  bool is_there_ = false;
};

TEST(FullDisk, IsAnErrorOfAllRanksAndTheTrainingGoesOnFromWhatFitted) {
  const TemporaryTree undisturbed;
  Job alone(mortal_training(2, undisturbed.path(), "now"));
  ASSERT_EQ(alone.wait(kTime), exited(0)) << alone.err();
  const auto one = fs::file_size(undisturbed / checkpoints_in(undisturbed.path()).back()) / 1024;

  for (const char* when : {"now", "later"}) {
    SCOPED_TRACE(when);
    const TemporaryTree folder;
    const std::string disk = folder / "disk";
    const SmallDisk small(disk, static_cast<int>(one * 5 / 2));  // the third does not fit
    if (!small.is_there()) GTEST_SKIP() << "only root can mount a small file system";
    Job job(mortal_training(2, disk, when));
    EXPECT_EQ(job.wait(kTime), exited(1)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("No space left on device; the checkpoints before it remain"));
    EXPECT_THAT(unfinished_in(disk), IsEmpty());
    EXPECT_EQ(last_step_in(disk), 6);
    EXPECT_EQ(fs::read_symlink(disk + "/latest.safetensors"), checkpoints_in(disk).back());

    ASSERT_TRUE(small.grow(static_cast<int>(one * 10)));
    Job resumed(mortal_training(2, disk, when));
    EXPECT_EQ(resumed.wait(kTime), exited(0)) << resumed.err();
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), disk));
  }
}

}  // namespace
}  // namespace ddprun::test
