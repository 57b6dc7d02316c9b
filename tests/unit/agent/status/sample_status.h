// A status with something in every field, for the tests of those who show one.
#pragma once

#include "agent/status/job_status.h"

namespace ddprun::agent {

// Node 1 of 2, with rank 2, which runs, and rank 3, which has failed without ever saying anything.
inline NodeStatus sample_node() {
  using namespace std::chrono_literals;
  NodeStatus node;
  node.host = "b7";
  node.agent_pid = 3001;
  node.state = NodeState::kRunning;
  node.round = Round{3};
  node.node_rank = 1;
  node.node_count = 2;
  node.world_size = 4;
  node.rank_offset = 2;
  node.local_world_size = 2;
  WorkerStatus worker;
  worker.rank = 2;
  worker.pid = 4711;
  worker.device = "cuda:0";
  worker.state = WorkerState::kRunning;
  worker.progress = WorkerProgress{};
  worker.progress->step = 412;
  worker.progress->total_steps = 1000;
  worker.progress->since_step = 250ms;
  worker.progress->collectives = 900;
  worker.progress->phase = WorkerPhase::kCollective;
  worker.progress->values = {{"lr", 0.5}, {"loss", 0.25}};
  node.workers.push_back(worker);
  WorkerStatus failed;
  failed.rank = 3;
  failed.local_rank = 1;
  failed.state = WorkerState::kFailed;
  failed.exit = ExitStatus::exited(1);
  node.workers.push_back(failed);
  node.restarts = 2;
  node.max_restarts = 5;
  node.wall = 100s;
  node.until_run = 1500ms;
  node.until_first_step = 1500ms;
  node.downtime = {500ms, 1s, 4s, 3s, 42, DowntimeEnd::kStepAfter};
  node.goodput = 0.9;
  node.restart_totals = {{RestartReason::kWorkerFailed, 2, 500ms},
                         {RestartReason::kNodeLost, 1, 8s}};
  RestartRecord record;
  record.when = std::chrono::system_clock::time_point(1'790'000'000s);
  record.round = Round{3};
  record.reason = RestartReason::kNodeLost;
  record.host = "b9";
  record.sentence = "node 2 (b9) was lost";
  record.downtime = {500ms, 1s, 3500ms, 3s, 42, DowntimeEnd::kStepAfter};
  node.recent_restarts.push_back(record);
  node.store = StoreStatus{18'204, 9, 311, 91'000};
  node.standbys = StandbyStatus{1, 2, ""};
  node.gpus = {
      {.index = 5,
       .uuid = "GPU-1",
       .pci_address = "0000:c1:00.0",
       .ranks = {4},
       .memory_used = std::uint64_t{61} << 30,
       .memory_total = std::uint64_t{80} << 30,
       .utilization = 98,
       .temperature = 61,
       .ecc = 2,
       .xids = {94}},
      {.index = 6, .uuid = "GPU-2", .pci_address = "", .ranks = {}, .trouble = "it is lost"}};
  node.gpus_age = 1s;
  node.gpu_trouble = "NVML has not answered for 12 s";
  node.restarts_in_place = 1;
  node.replacement = ReplacementStatus{true, 1, 2, 3, ""};
  return node;
}

inline JobStatus sample_job() {
  using namespace std::chrono_literals;
  JobStatus job;
  job.run_id = "llm-7";
  job.program = "train.py";
  job.version = "0.1.0";
  job.when = std::chrono::system_clock::time_point(1'790'000'050s);
  job.asked_host = "b7";
  LeaderStatus leader;
  leader.state = "running";
  leader.round = Round{3};
  leader.min_nodes = 2;
  leader.max_nodes = 3;
  leader.missing = 1;
  job.leader = leader;
  job.nodes.push_back(sample_node());
  job.late.push_back({7, "b6", "it has not answered within 100 ms"});
  return job;
}

}  // namespace ddprun::agent
