#include "agent/status/node_status.h"

#include <gtest/gtest.h>

#include "agent/notify/kubeflow_status.h"
#include "agent/output/status_line.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

WorkerProgress at_step(std::int64_t step) {
  WorkerProgress progress;
  progress.step = step;
  progress.total_steps = 1000;
  return progress;
}

NodeSnapshot node_of(int rank_offset) {
  NodeSnapshot node;
  node.state = NodeState::kRunning;
  node.round.round = Round{2};
  node.round.rank_offset = rank_offset;
  node.round.world_size = 4;
  node.round.restarts = 1;
  node.round.max_restarts = 3;
  node.running = 1;
  node.progress = {at_step(412), std::nullopt};
  node.wall = 61s;
  return node;
}

TEST(NodeSnapshot, TheStatusCountsWorkersAndTellsHowFarThoseAreThatSay) {
  EXPECT_EQ(situation_text(node_of(0)),
            "round 2, 1 of 2 workers left, step 412 of 1000, restart 1 of 3");
}

TEST(NodeSnapshot, OnlyTheNodeOfRankZeroSpeaksForTheJob) {
  const auto progress = job_progress_of(node_of(0));
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, 412);
  EXPECT_EQ(progress->world_size, 4);
  EXPECT_EQ(progress->restarts, 1);
  EXPECT_EQ(job_progress_of(node_of(2)), std::nullopt);
}

TEST(NodeSnapshot, NobodySpeaksForTheJobBeforeRankZeroHasSaidAStep) {
  NodeSnapshot node = node_of(0);
  node.progress.front() = WorkerProgress{};
  EXPECT_EQ(job_progress_of(node), std::nullopt);
  node.progress.clear();
  EXPECT_EQ(job_progress_of(node), std::nullopt) << "before the first round";
}

TEST(NodeSnapshot, StepsThatAHookHasCountedAreNotToldToTrainer) {
  NodeSnapshot node = node_of(0);
  node.progress.front() = WorkerProgress{};
  node.progress.front()->step = 7;
  node.progress.front()->step_kind = StepKind::kOptimizer;
  EXPECT_EQ(job_progress_of(node), std::nullopt);
  node.progress.front()->step_kind = StepKind::kProgram;
  EXPECT_NE(job_progress_of(node), std::nullopt);
}

TEST(NodeSnapshot, AStatusHasTheProgressOfItsWorkersByTheirLocalRanks) {
  NodeStatus status;
  status.workers.resize(2);
  status.workers[0].local_rank = 1;
  status.workers[1].local_rank = 0;
  NodeSnapshot node = node_of(2);
  node.leads = true;
  node.store.emplace().requests = 7;
  fill(status, node);
  EXPECT_EQ(status.state, NodeState::kRunning);
  EXPECT_TRUE(status.leads);
  EXPECT_EQ(status.wall, 61s);
  EXPECT_EQ(status.store->requests, 7U);
  EXPECT_EQ(status.workers[0].progress, std::nullopt);
  EXPECT_EQ(status.workers[1].progress->step, 412);
}

}  // namespace
}  // namespace ddprun::agent
