// A training survives the death of any worker: it resumes from its checkpoint and ends with the
// same weights, bit for bit, as if nothing had happened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/training.h"

namespace ddprun::test {
namespace {
namespace fs = std::filesystem;

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Small enough for seconds, long enough to be killed in the middle: 2 epochs of 63 steps, the last
// of which is short (500 samples do not divide by 2 × 4).
constexpr int kStepsPerEpoch = 63;

Command training(int workers, const std::string& checkpoints, int epochs = 2) {
  return ddprun({"--nproc-per-node=" + std::to_string(workers), "--max-restarts=10"},
                test::training(checkpoints, epochs));
}

class Training : public ::testing::Test {
 protected:
  // What an uninterrupted run leaves, made once for all tests of this program.
  static void SetUpTestSuite() {
    undisturbed_ = new TemporaryTree;
    Job job(training(2, undisturbed_->path()));
    ASSERT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    ASSERT_EQ(last_step_in(undisturbed_->path()), 2 * kStepsPerEpoch);
  }
  static void TearDownTestSuite() {
    delete undisturbed_;
    undisturbed_ = nullptr;
  }

  // Waits for `steps` further steps to be on disk, then kills this rank of the present round.
  static void kill_after(Job& job, const TemporaryTree& folder, int rank, int steps) {
    const int wanted = last_step_in(folder.path()) + steps;
    ASSERT_TRUE(job.reaches([&] { return last_step_in(folder.path()) >= wanted; }, seconds(60)))
        << job.err();
    const auto workers = job.workers();
    ASSERT_TRUE(workers.contains(rank)) << job.err();
    kill(workers.at(rank), SIGKILL);
  }

  static TemporaryTree* undisturbed_;
};
TemporaryTree* Training::undisturbed_ = nullptr;

TEST_F(Training, ResumesBitIdenticallyWhicheverWorkerIsKilled) {
  for (const int victim : {0, 1}) {
    SCOPED_TRACE("victim " + std::to_string(victim));
    const TemporaryTree folder;
    Job job(training(2, folder.path()));
    kill_after(job, folder, victim, /*steps=*/21);
    ASSERT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("continuing in epoch "));
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed_->path(), folder.path())) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
}

// Gloo sums three numbers in an order that depends on their place in a bucket: the checkpoint has to
// keep the layout of buckets.
TEST_F(Training, ResumesBitIdenticallyWithThreeAndMoreWorkers) {
  for (const int workers : full_tests() ? std::vector{3, 4, 5} : std::vector{3}) {
    SCOPED_TRACE(workers);
    const TemporaryTree undisturbed;
    Job whole(training(workers, undisturbed.path()));
    ASSERT_EQ(whole.wait(seconds(120)), exited(0)) << whole.err();
    const TemporaryTree folder;
    Job job(training(workers, folder.path()));
    kill_after(job, folder, /*rank=*/workers - 1, /*steps=*/21);
    ASSERT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("continuing in epoch "));
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), folder.path())) << job.err();
  }
}

// Power is cut: nobody restarts anything, the user starts the same command again.
TEST_F(Training, ResumesBitIdenticallyAfterTheLauncherWasKilled) {
  const TemporaryTree folder;
  {
    Job job(training(2, folder.path()));
    ASSERT_TRUE(job.reaches([&] { return last_step_in(folder.path()) >= 70; }, seconds(60)))
        << job.err();
    job.signal(SIGKILL);
    EXPECT_EQ(job.wait(), killed_by(SIGKILL));
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
  Job job(training(2, folder.path()));
  ASSERT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("continuing in epoch "));
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed_->path(), folder.path())) << job.err();
}

// Each rank's last step, as its loss file says.
std::vector<int> last_steps_of_ranks(const std::string& loss_file) {
  std::vector<int> steps;
  for (int rank = 0; rank < 2; ++rank) {
    int last = -1;
    std::istringstream lines(read_file(loss_file + ".rank" + std::to_string(rank)));
    for (std::string line; std::getline(lines, line) && !lines.eof();) last = std::stoi(line);
    steps.push_back(last);
  }
  return steps;
}

TEST_F(Training, LeavesOnAllRanksAfterTheSameStepWhenPreemptedAndResumesBitIdentically) {
  const TemporaryTree folder;
  const std::string losses = folder / "losses";
  {
    // Far longer than any notice takes.
    Command command = training(2, folder.path(), /*epochs=*/200);
    command.insert(command.begin() + 1, "--preempt-signal=USR1");
    Job job(command, {.environment = {{"DDPRUN_RECORD_LOSSES", losses}}});
    ASSERT_TRUE(job.reaches([&] { return last_steps_of_ranks(losses).front() >= 5; }, seconds(60)))
        << job.err();
    job.signal(SIGUSR1);
    ASSERT_EQ(job.wait(seconds(60)), exited(113)) << job.err();
    EXPECT_THAT(job.left_over(), IsEmpty());
  }
  const auto left_after = last_steps_of_ranks(losses);
  const int step = left_after.front();
  EXPECT_THAT(left_after, Each(step));
  EXPECT_EQ(last_step_in(folder.path()), step);

  // The rest of the epoch, and one more.
  const int epochs = 1 + (step - 1) / kStepsPerEpoch + 1;
  Job resumed(training(2, folder.path(), epochs));
  ASSERT_EQ(resumed.wait(seconds(120)), exited(0)) << resumed.err();
  EXPECT_THAT(resumed.err(), HasSubstr("after step " + std::to_string(step)));
  const TemporaryTree whole;
  Job uninterrupted(training(2, whole.path(), epochs));
  ASSERT_EQ(uninterrupted.wait(seconds(120)), exited(0)) << uninterrupted.err();
  EXPECT_TRUE(end_with_the_same_bytes(whole.path(), folder.path())) << resumed.err();
}

TEST_F(Training, UsesThePreviousCheckpointWhenTheNewestIsDamaged) {
  const TemporaryTree folder;
  fs::copy(undisturbed_->path(), folder.path(), fs::copy_options::recursive);
  const auto names = checkpoints_in(folder.path());
  ASSERT_GE(names.size(), 2U);
  const std::string newest = folder / names.back();
  for (const bool cut_off : {true, false}) {
    SCOPED_TRACE(cut_off ? "cut off" : "one bit flipped");
    std::string bytes = read_file(undisturbed_->path() + "/" + names.back());
    if (cut_off) {
      bytes.resize(bytes.size() / 2);
    } else {
      bytes[bytes.size() / 2] ^= 1;
    }
    write_file(newest, bytes);
    Job job(training(2, folder.path()));
    ASSERT_EQ(job.wait(seconds(120)), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(names.back()));
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed_->path(), folder.path())) << job.err();
  }
}

TEST(TrainAlone, RefusesWhatCannotWorkWithOneSentence) {
  const TemporaryTree folder;
  write_file(folder / "file", "");
  struct Case {
    std::vector<std::string> arguments;
    std::map<std::string, std::string> environment;
    std::string says;
  };
  for (const auto& [arguments, environment, says] : std::vector<Case>{
           {{"--checkpoint-dir=" + (folder / "file")}, {}, folder / "file"},
           {{"--checkpoint-dir=/proc/nowhere"}, {}, "/proc/nowhere"},
           {{"--data=" + folder.path()}, {}, folder.path()},
           {{"--epochs=0"}, {}, "epochs"},
           {{"--backend=nccl"}, {{"CUDA_VISIBLE_DEVICES", ""}}, "nccl"},
           {{"--backend=carrier-pigeon"}, {}, "carrier-pigeon"},
           {{}, {{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK"},
           {{}, {{"RANK", "0"}}, "WORLD_SIZE"},
           {{}, {{"WORLD_SIZE", "two"}, {"RANK", "0"}}, "WORLD_SIZE"},
       }) {
    SCOPED_TRACE(::testing::PrintToString(arguments) + ::testing::PrintToString(environment));
    Command command{DDPRUN_TRAIN};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Job job(command, {.environment = environment});
    EXPECT_EQ(job.wait(), exited(2)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr(says));
  }
}

#ifdef DDPRUN_FAKE_CUDA
TEST(TrainAlone, SaysThatTheDriverShowsGpusWhichLibTorchCannotUse) {
  const TemporaryTree folder;
  fs::create_symlink(DDPRUN_FAKE_CUDA, folder / "libcuda.so.1");
  for (const char* const backend : {"auto", "nccl"}) {
    Job job({DDPRUN_TRAIN, std::string("--backend=") + backend},
            {.environment = {{"LD_LIBRARY_PATH", folder.path()}}});
    EXPECT_EQ(job.wait(), exited(2)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("the driver shows 2 GPUs, but LibTorch can use none"));
    EXPECT_THAT(job.err(),
                HasSubstr("the driver is too old for it, since it knows CUDA up to 12.4"));
  }
}

TEST(TrainAlone, SaysThatNcclIsNotTheOneThatLibTorchNeeds) {
  const TemporaryTree folder;
  fs::create_symlink(DDPRUN_FAKE_CUDA, folder / "libcuda.so.1");
  // LibTorch looks beside itself first, but takes what is loaded already.
  Job job({DDPRUN_TRAIN, "--backend=nccl"},
          {.environment = {{"LD_LIBRARY_PATH", folder.path()}, {"LD_PRELOAD", DDPRUN_FAKE_NCCL}}});
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("NCCL is missing, or is not the one that LibTorch needs"));
}
#endif

TEST(TrainAlone, NamesADataFileThatIsCutOff) {
  const TemporaryTree folder;
  for (const auto& entry : fs::directory_iterator("/usr/share/datasets/fashion-mnist")) {
    fs::create_symlink(entry, folder / entry.path().filename());
  }
  const std::string name = "train-images-idx3-ubyte.gz";
  const std::string whole = read_file(folder / name);
  ASSERT_GT(whole.size(), 1000U);
  fs::remove(folder / name);
  write_file(folder / name, whole.substr(0, whole.size() / 2));
  Job job({DDPRUN_TRAIN, "--data=" + folder.path()});
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr(folder / name));
}

}  // namespace
}  // namespace ddprun::test
