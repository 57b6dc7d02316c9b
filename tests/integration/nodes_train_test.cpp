// Trainings on two and three nodes: after any fault of workers, agents or cables the training
// continues from its checkpoint, and with the same number of ranks the final weights are bit for
// bit those of the undisturbed run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {
namespace fs = std::filesystem;

using namespace std::chrono_literals;
using ::testing::_;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr seconds kTrainingTime{240};

class NodesTrain : public ::testing::Test {
 protected:
  Cluster& cluster_of(ClusterSetup setup, Network* network = nullptr, int epochs = 2) {
    setup.program = training(folder_.path(), epochs);
    setup.environment["DDPRUN_RECORD_SAMPLES"] = samples_file();
    // As ddprun sets it for two workers on one node: with more threads sums have another order.
    setup.environment["OMP_NUM_THREADS"] = "1";
    return cluster_.emplace(std::move(setup), network);
  }
  void await_steps(int steps) {
    const int wanted = last_step_in(folder_.path()) + steps;
    ASSERT_TRUE(eventually([&] { return last_step_in(folder_.path()) >= wanted; }, seconds(60)))
        << cluster_->told();
  }
  void expect_good_end() {
    EXPECT_THAT(cluster_->wait(kTrainingTime), Each(Pair(_, exited(0)))) << cluster_->told();
    EXPECT_THAT(cluster_->left_over(), IsEmpty());
  }
  // Those of one node with two workers, which is the same world of two.
  void expect_the_undisturbed_weights(int epochs = 2) {
    const TemporaryTree undisturbed;
    Job alone(ddprun({"--nproc-per-node=2"}, training(undisturbed.path(), epochs)));
    ASSERT_EQ(alone.wait(kTrainingTime), exited(0)) << alone.err();
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), folder_.path())) << cluster_->told();
  }

  std::string samples_file() const { return samples_folder_ / "samples"; }

  TemporaryTree folder_;
  TemporaryTree samples_folder_;
  std::optional<Cluster> cluster_;
};

TEST_F(NodesTrain, EndWithTheSameWeightsWhicheverWorkerIsKilled) {
  Cluster& cluster = cluster_of({.meeting = Meeting::kStatic, .options = {"--max-restarts=2"}});
  cluster.start_all(2);
  for (const int node : {0, 1}) {
    await_steps(21);
    const auto workers = cluster[node].workers();
    ASSERT_TRUE(workers.contains(node)) << cluster.told();
    kill(workers.at(node), SIGKILL);
  }
  expect_good_end();
  expect_the_undisturbed_weights();
}

TEST_F(NodesTrain, EndWithTheSameWeightsWhenANodeIsKilledAndAnotherTakesItsPlace) {
  Cluster& cluster = cluster_of({});
  cluster.start_all(3);  // the third is a spare
  await_steps(21);
  // Whichever of the two that are no leader works.
  const int victim = cluster[1].workers().empty() ? 2 : 1;
  cluster[victim].signal(SIGKILL);
  EXPECT_EQ(cluster[victim].wait(), killed_by(SIGKILL));
  EXPECT_THAT(cluster[victim].left_over(), IsEmpty());
  cluster.forget(victim);
  expect_good_end();
  expect_the_undisturbed_weights();
}

TEST_F(NodesTrain, EndWithTheSameWeightsOverANetworkThatFailsInEveryWay) {
  if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  // So many steps, and so slow a cable, that the training does not end before the last trouble.
  constexpr int kEpochs = 5;
  Network network(2);
  Cluster& cluster =
      cluster_of({.meeting = Meeting::kStatic,
                  // A node that has no processor for a while still comes back.
                  .conf = "keep_alive_interval=1,keep_alive_max_attempt=3,reconnect_grace=5000"},
                 &network, kEpochs);
  network.set_cable(0, {.delay = 2ms, .loss = 0.0002});
  cluster.start_all(2);
  ASSERT_NO_FATAL_FAILURE(await_steps(11));
  ASSERT_TRUE(network.break_connection(1, cluster.port()));
  ASSERT_NO_FATAL_FAILURE(await_steps(11));
  cluster[1].signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return cluster[0].workers().empty(); })) << cluster.told();
  cluster[1].signal(SIGCONT);
  ASSERT_NO_FATAL_FAILURE(await_steps(11));
  cluster[1].signal(SIGKILL);
  cluster.start(1);
  ASSERT_NO_FATAL_FAILURE(await_steps(11));
  expect_good_end();
  expect_the_undisturbed_weights(kEpochs);
  EXPECT_THAT(network.left_over(), IsEmpty());
}

// The death of a node makes Gloo throw on all others: that is no failure of theirs.
TEST_F(NodesTrain, GoOnWithFewerAndWithMoreFromTheCheckpoint) {
  Cluster& cluster = cluster_of({.nnodes = "1:2"});
  cluster.start_all(2);
  await_steps(21);
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[1].wait(), killed_by(SIGKILL));
  await_steps(11);
  cluster.start(1);
  ASSERT_TRUE(eventually([&] { return !cluster[1].workers().empty(); })) << cluster.told();
  expect_good_end();
  EXPECT_THAT(cluster[0].err(), HasSubstr("continuing in epoch"));
  EXPECT_THAT(cluster[0].out(), HasSubstr("test accuracy:"));
}

// What one rank trained on in one step.
struct StepSamples {
  int epoch = 0;
  int world = 0;
  int consumed = 0;
  std::vector<int> samples;
};

// A rank's steps as DDPRUN_RECORD_SAMPLES has them (record_steps.cpp). A step that was repeated after a failure counts
// as it was made last: the training goes on from a checkpoint before its first time.
std::map<int, StepSamples> steps_in(const std::string& file) {
  std::map<int, StepSamples> steps;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    if (!line.ends_with(" .")) continue;
    std::istringstream numbers(line);
    int step = 0;
    StepSamples made;
    numbers >> step >> made.epoch >> made.world >> made.consumed;
    for (int sample = 0; numbers >> sample;) made.samples.push_back(sample);
    steps[step] = std::move(made);
  }
  return steps;
}

// Whatever the worlds were, each epoch has every sample once, and at its end less than a row more:
// the padding of PyTorch's sampler.
void expect_every_sample_once(const std::string& file, int last_step, int epochs, int size,
                              std::set<int>& worlds) {
  std::map<int, std::map<int, StepSamples>> ranks;
  const auto rank_did = [&](int rank) -> std::map<int, StepSamples>& {
    if (!ranks.contains(rank)) ranks[rank] = steps_in(file + ".rank" + std::to_string(rank));
    return ranks[rank];
  };
  std::vector<std::map<int, int>> times(static_cast<std::size_t>(epochs));
  std::vector<int> last_world(static_cast<std::size_t>(epochs));
  for (int step = 1; step <= last_step; ++step) {
    const StepSamples first = rank_did(0)[step];
    ASSERT_GT(first.world, 0) << "step " << step << " was never made";
    worlds.insert(first.world);
    const auto epoch = static_cast<std::size_t>(first.epoch);
    ASSERT_LT(epoch, times.size());
    last_world[epoch] = first.world;
    for (int rank = 0; rank < first.world; ++rank) {
      const StepSamples& made = rank_did(rank)[step];
      ASSERT_EQ(made.world, first.world) << "step " << step << " of rank " << rank;
      ASSERT_EQ(made.consumed, first.consumed) << "step " << step << " of rank " << rank;
      for (const int sample : made.samples) ++times[epoch][sample];
    }
  }
  for (int epoch = 0; epoch < epochs; ++epoch) {
    const auto& seen = times[static_cast<std::size_t>(epoch)];
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(size)) << "lost in epoch " << epoch;
    int more = 0;
    for (const auto& [sample, count] : seen) {
      EXPECT_LE(count, 2) << "sample " << sample << " in epoch " << epoch;
      more += count - 1;
    }
    EXPECT_LT(more, last_world[static_cast<std::size_t>(epoch)]) << "epoch " << epoch;
  }
}

TEST_F(NodesTrain, TrainOnEverySampleOnceHoweverTheWorldGrowsAndShrinks) {
  constexpr int kEpochs = 10;  // so that it does not end before the last change
  constexpr int kSize = 500;   // of training()
  Cluster& cluster = cluster_of({.nnodes = "1:3"}, nullptr, kEpochs);
  cluster.start_all(2);
  ASSERT_NO_FATAL_FAILURE(await_steps(21));
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[1].wait(), killed_by(SIGKILL));
  ASSERT_NO_FATAL_FAILURE(await_steps(21));
  for (const int node : {1, 2}) {
    cluster.start(node);
    ASSERT_TRUE(eventually([&] { return !cluster[node].workers().empty(); }, seconds(60)))
        << cluster.told();
    ASSERT_NO_FATAL_FAILURE(await_steps(11));
  }
  cluster[2].signal(SIGKILL);
  EXPECT_EQ(cluster[2].wait(), killed_by(SIGKILL));
  cluster.forget(2);
  expect_good_end();
  std::set<int> worlds;
  ASSERT_NO_FATAL_FAILURE(expect_every_sample_once(samples_file(), last_step_in(folder_.path()),
                                                   kEpochs, kSize, worlds));
  EXPECT_THAT(worlds, ::testing::IsSupersetOf({1, 2, 3})) << cluster.told();
}

// Under torchrun 2.11 half of the restarts meet what the last round left in the store.
TEST(GlooJob, RestartsAsOftenAsAskedWithoutOneFailedStart) {
  const int restarts = full_tests() ? 200 : 5;
  const TemporaryTree folder;
  Cluster cluster({.meeting = Meeting::kStatic,
                   .options = {"--max-restarts=" + std::to_string(restarts)},
                   .program = {DDPRUN_GLOO_WORKER, folder.path(), std::to_string(restarts)}});
  cluster.start_all(2);
  EXPECT_THAT(cluster.wait(seconds(full_tests() ? 900 : 200)), Each(Pair(_, exited(0))))
      << cluster.told();
  for (int round = 0; round <= restarts; ++round) {
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(fs::exists(folder / (std::to_string(round) + "." + std::to_string(rank))))
          << "rank " << rank << " did not join round " << round;
    }
  }
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
