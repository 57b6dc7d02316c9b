// Snapshots in the agent's memory: however many workers die at any moment, the training goes on from at most
// memory_every steps before, and ends with the bits of an undisturbed one.
//
// DDPRUN_TEST_SEED=N chooses the moments; DDPRUN_TEST_FULL=1 kills more often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/deaths_in_place.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr seconds kTime{240};
constexpr int kEvery = 3;

unsigned seed_of_test() {
  const char* const given = std::getenv("DDPRUN_TEST_SEED");
  return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10))
                          : std::random_device{}();
}

// memory_every: these in each run, and one more with DDPRUN_TEST_FULL=1.
std::vector<std::string> chosen(std::vector<std::string> some, const std::string& more) {
  if (full_tests()) some.push_back(more);
  return some;
}

// Steps in the order in which rank 0 made them.
std::vector<int> steps_in(const std::string& path) {
  std::vector<int> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) steps.push_back(std::stoi(line));
  return steps;
}

// One checkpoint on the disk, at the end.
Command images(const std::string& folder, const std::vector<std::string>& options) {
  std::vector<std::string> all{"--nproc-per-node=2", "--max-restarts=1000", "--no-python"};
  all.insert(all.end(), options.begin(), options.end());
  return ddprun(all, {DDPRUN_RECORDED_TRAIN, "--epochs=1", "--limit=1500", "--batch-size=4",
                      "--seed=3", "--checkpoint-dir=" + folder + "/checkpoints",
                      "--memory-every=" + std::to_string(kEvery)});
}

JobSetup noting_losses(const std::string& folder, JobSetup setup = {}) {
  setup.environment["DDPRUN_RECORD_LOSSES"] = folder + "/loss";
  return setup;
}

void lose_a_few_steps(const std::string& standby, std::mt19937& random,
                      const TemporaryTree& undisturbed) {
  const TemporaryTree folder;
  Job job(images(folder.path(), {standby}), noting_losses(folder.path()));
  const auto made = [&] { return steps_in(folder / "loss.rank0").size(); };
  for (int kills = full_tests() ? 30 : 2; kills > 0; --kills) {
    const std::size_t before = made();
    ASSERT_TRUE(job.reaches([&] { return made() > before + 5; }, kTime)) << job.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    const bool are_all = kills % 3 != 0;
    for (const auto& [rank, pid] : job.workers()) {
      if (are_all || rank == kills % 2) kill(pid, SIGKILL);
    }
  }
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed / "checkpoints", folder / "checkpoints"))
      << job.err();
  EXPECT_THAT(job.err(), HasSubstr("continuing in epoch 1 after step"));
  EXPECT_THAT(job.err(), Not(HasSubstr("in memory"))) << job.err();
  const auto steps = steps_in(folder / "loss.rank0");
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_LE(steps[i], steps[i - 1] + 1);
    EXPECT_LE(steps[i - 1] + 1 - steps[i], kEvery) << "after step " << steps[i - 1];
  }
}

TEST(Snapshot, LosesAFewStepsWhenAllRanksAreKilledAtAnyMoment) {
  const unsigned seed = seed_of_test();
  std::mt19937 random(seed);
  SCOPED_TRACE("DDPRUN_TEST_SEED=" + std::to_string(seed));
  const TemporaryTree undisturbed;
  Job plain(images(undisturbed.path(), {}));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  for (const std::string standby : {"--standby=auto", "--standby=off"}) {
    SCOPED_TRACE(standby);
    ASSERT_NO_FATAL_FAILURE(lose_a_few_steps(standby, random, undisturbed));
  }
}

// With momentum, batch statistics, random numbers of each rank, a schedule and a scale of gradients.
TEST(Snapshot, GivesBackAllStateWhereverARankDies) {
  const auto command = [](const std::string& folder, const std::string& every) {
    return ddprun({"--nproc-per-node=3", "--max-restarts=10", "--no-python", "--standby=off"},
                  {DDPRUN_MORTAL_TRAINING, folder, "now", "shm", every});
  };
  const TemporaryTree undisturbed;
  Job plain(command(undisturbed.path(), "0"));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  // "saving" is reached on rank 0 in the middle of a snapshot, too.
  const std::string deaths =
      "forward:2:1,backward:5:2,optimizer:8:0,after_step:11:1,saving:14:0,after_step:17:2";
  for (const std::string& every : chosen({"2", "auto"}, "1")) {
    SCOPED_TRACE(every);
    const TemporaryTree folder;
    Job job(command(folder.path(), every == "auto" ? "-1" : every),
            {.environment = {{"DDPRUN_DEATHS", deaths}}});
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("restart 6 of 10"));
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), folder.path())) << job.err();
  }
}

// Its set-up is that of a worker which had found none, and at that time there are some.
TEST(Snapshot, OfTheWorkersIsNoneOfAStandbyThatIsMadeLater) {
  const TemporaryTree folder;
  const DeathsInPlace plan({"forward:5:0", "forward:9:0"});
  std::vector<std::string> options = plan.options();
  options.insert(options.end(), {"--nproc-per-node=2", "--max-restarts=10", "--no-python"});
  Job job(ddprun(options, {DDPRUN_MORTAL_TRAINING, folder.path(), "now", "shm", "1"}),
          plan.setup());
  ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, 2, kTime));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("cannot be replaced"))) << job.err();
  EXPECT_THAT(plan.events(), Not(HasSubstr("\"round\":1"))) << job.err();
}

// 3 epochs of 10 steps. The Trainer's own state (losses of the epoch, history) comes back, too; and where the last step
// was in memory when all died, the end is on the disk nevertheless.
TEST(Snapshot, IsMadeByTheTrainer) {
  const auto command = [](const std::string& folder, const std::string& every) {
    return ddprun({"--nproc-per-node=2", "--max-restarts=10", "--no-python", "--standby=off"},
                  {DDPRUN_TRAINED_BY_TRAINER, folder, every});
  };
  const TemporaryTree undisturbed;
  Job plain(command(undisturbed.path(), "0"));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  for (const std::string& every : chosen({"3", "10"}, "1")) {
    SCOPED_TRACE(every);
    const TemporaryTree folder;
    Job job(command(folder.path(), every),
            {.environment = {{"DDPRUN_ALL_DIE_AT", "5,12,12,20,30"}}});
    ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("restart 5 of 10"));
    EXPECT_THAT(job.err(), HasSubstr("after step " + std::string(every == "10"  ? "20"
                                                                 : every == "3" ? "27"
                                                                                : "29")));
    // Not the file's bytes: how long an epoch took is in it.
    EXPECT_EQ(job.out(), plain.out()) << job.err();
    EXPECT_EQ(last_step_in(folder.path()), 30);
  }
}

// --keep-memory: their ddprun dies, and the next one goes on.
class OutlivingSnapshot : public ::testing::Test {
 protected:
  JobSetup here() const {
    return {.environment = {{"DDPRUN_CONTROL_DIR", runtime_ / "ddprun"}},
            .removed_variables = {"KUBERNETES_SERVICE_HOST", "NOTIFY_SOCKET"}};
  }
  const TemporaryTree runtime_;
};

TEST_F(OutlivingSnapshot, IsWhatTheNextDdprunContinuesFrom) {
  const unsigned seed = seed_of_test();
  std::mt19937 random(seed);
  SCOPED_TRACE("DDPRUN_TEST_SEED=" + std::to_string(seed));
  const TemporaryTree undisturbed;
  Job plain(images(undisturbed.path(), {}));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();

  const TemporaryTree folder;
  const std::vector<std::string> options{"--keep-memory=600", "--rdzv-id=images"};
  const auto made = [&] { return steps_in(folder / "loss.rank0").size(); };
  std::vector<std::unique_ptr<Job>> killed;
  for (int kills = full_tests() ? 10 : 3; kills > 0; --kills) {
    const std::size_t before = made();
    Job& job = *killed.emplace_back(std::make_unique<Job>(images(folder.path(), options),
                                                          noting_losses(folder.path(), here())));
    ASSERT_TRUE(job.reaches([&] { return made() > before + 5; }, kTime)) << job.err();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
    job.signal(SIGKILL);
    job.wait();
  }
  Job job(images(folder.path(), options), noting_losses(folder.path(), here()));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("continuing in epoch 1 after step"));
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed / "checkpoints", folder / "checkpoints"))
      << job.err();
  EXPECT_THAT(job.left_over(), IsEmpty());
  for (const auto& each : killed) EXPECT_THAT(each->left_over(), IsEmpty());
  const auto steps = steps_in(folder / "loss.rank0");
  for (std::size_t i = 1; i < steps.size(); ++i) {
    EXPECT_LE(steps[i - 1] + 1 - steps[i], kEvery) << "after step " << steps[i - 1];
  }
}

// The file of the program is another one now.
TEST_F(OutlivingSnapshot, OfAnotherModelIsNamedAndTheDiskIsUsed) {
  const TemporaryTree folder;
  const auto as_one_program = [&](Command training) {
    write_file(folder / "program", "#!/bin/sh\nexec \"$@\"\n", 0755);
    training.insert(training.begin(), folder / "program");
    return ddprun({"--nproc-per-node=2", "--no-python", "--keep-memory=600", "--rdzv-id=m"},
                  training);
  };
  Job images_of(
      as_one_program({DDPRUN_RECORDED_TRAIN, "--epochs=1", "--limit=1500", "--batch-size=4",
                      "--checkpoint-dir=" + (folder / "images"), "--memory-every=1"}),
      noting_losses(folder.path(), here()));
  ASSERT_TRUE(images_of.reaches([&] { return steps_in(folder / "loss.rank0").size() > 5; }, kTime))
      << images_of.err();
  images_of.signal(SIGKILL);
  images_of.wait();
  Job other(as_one_program({DDPRUN_TRAINED_BY_TRAINER, folder / "checkpoints", "1"}), here());
  ASSERT_EQ(other.wait(kTime), exited(0)) << other.err();
  EXPECT_THAT(other.err(),
              AllOf(HasSubstr("the snapshot of step "), HasSubstr("in memory is not used: ")));
  EXPECT_EQ(last_step_in(folder / "checkpoints"), 30);
}

// Nobody could read them, so none are made.
TEST(Snapshot, IsNotMadeWhereNoRestartCanFollow) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=1", "--no-python"},
                 {"/bin/sh", "-c", "echo ${DDPRUN_SNAPSHOT_FD-none}"}));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(), "none\n");
  Job other(ddprun({"--nproc-per-node=1", "--no-python", "--max-restarts=1"},
                   {"/bin/sh", "-c", "readlink /proc/self/fd/$DDPRUN_SNAPSHOT_FD"}));
  ASSERT_EQ(other.wait(), exited(0)) << other.err();
  EXPECT_THAT(other.out(), HasSubstr("/memfd:ddprun-snapshot"));
}

}  // namespace
}  // namespace ddprun::test
