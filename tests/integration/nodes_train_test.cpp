// Trainings on two and three nodes: whatever happens to workers, agents and cables, the training
// goes on from its checkpoint, and with as many ranks as before the final weights equal the
// undisturbed run's bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
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
  // One node with two workers, which is the same world of two.
  static void SetUpTestSuite() {
    undisturbed_ = new TempDir;
    Job job(ddprun({"--nproc-per-node=2"}, training(undisturbed_->path())));
    ASSERT_EQ(job.wait(kTrainingTime), exited(0)) << job.err();
  }
  static void TearDownTestSuite() {
    delete undisturbed_;
    undisturbed_ = nullptr;
  }

  Cluster& cluster_of(ClusterSetup setup, Network* network = nullptr, int epochs = 2) {
    setup.program = training(folder_.path(), epochs);
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
  void expect_the_undisturbed_weights() {
    EXPECT_TRUE(end_with_the_same_bytes(undisturbed_->path(), folder_.path())) << cluster_->told();
  }

  static TempDir* undisturbed_;
  TempDir folder_;
  std::optional<Cluster> cluster_;
};
TempDir* NodesTrain::undisturbed_ = nullptr;

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
  constexpr int kEpochs = 8;
  const TempDir undisturbed;
  Job alone(ddprun({"--nproc-per-node=2"}, training(undisturbed.path(), kEpochs)));
  ASSERT_EQ(alone.wait(kTrainingTime), exited(0)) << alone.err();

  Network network(2);
  Cluster& cluster = cluster_of(
      {.meeting = Meeting::kStatic, .conf = "keep_alive_interval=1,keep_alive_max_attempt=3"},
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
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), folder_.path())) << cluster.told();
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

// Under torchrun 2.11 half of the restarts meet what the last round left in the store.
TEST(GlooJob, RestartsAsOftenAsAskedWithoutOneFailedStart) {
  const int restarts = full_tests() ? 200 : 20;
  const TempDir folder;
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
