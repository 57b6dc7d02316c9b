#include "launcher/ctl/status_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun::cli {
namespace {

using namespace std::chrono_literals;
using agent::JobStatus;
using agent::LeaderStatus;
using agent::MemberStatus;
using agent::NodeState;
using agent::NodeStatus;
using agent::ReplacementStatus;
using agent::RestartReason;
using agent::RestartRecord;
using agent::WorkerState;
using agent::WorkerStatus;
using ::testing::HasSubstr;
using ::testing::Not;

NodeStatus node_of(int node_rank, int workers) {
  NodeStatus node;
  node.host = "b" + std::to_string(11 + node_rank);
  node.state = NodeState::kRunning;
  node.round = Round{2};
  node.node_rank = node_rank;
  node.node_count = 2;
  node.world_size = 2 * workers;
  node.rank_offset = node_rank * workers;
  node.round_age = 15s;
  node.wall = 60s;
  for (int local_rank = 0; local_rank < workers; ++local_rank) {
    WorkerStatus worker;
    worker.rank = node.rank_offset + local_rank;
    worker.local_rank = local_rank;
    worker.pid = 100 + worker.rank;
    worker.state = WorkerState::kRunning;
    worker.progress.emplace();
    worker.progress->step = 400 + worker.rank;
    worker.progress->total_steps = 1000;
    worker.progress->since_step = 300ms;
    node.workers.push_back(worker);
  }
  return node;
}

JobStatus job_of(int workers) {
  JobStatus job;
  job.run_id = "train-7";
  job.program = "train.py";
  LeaderStatus leader;
  leader.state = "running";
  leader.min_nodes = leader.max_nodes = 2;
  leader.members = {{0, "b11", "10.0.0.11", workers, 0, MemberStatus::State::kInRound},
                    {1, "b12", "10.0.0.12", workers, 1, MemberStatus::State::kInRound}};
  job.leader = leader;
  job.nodes = {node_of(0, workers), node_of(1, workers)};
  return job;
}

TEST(StatusScreen, ShowsAJobThatIsWell) {
  EXPECT_EQ(
      status_screen(job_of(1), 30),
      "train.py, job train-7: round 2 runs for 15.0 s, 2 workers on 2 nodes\n"
      "restarts 0 of 0; start 0 ms, then 0 ms down after restarts; goodput not known: no step "
      "was reported yet\n"
      "\n"
      "NODES  2 joined of 2; the leader is running\n"
      "  0  b11  10.0.0.11  1 worker  in_round\n"
      "  1  b12  10.0.0.12  1 worker  in_round\n"
      "\n"
      "WORKERS  2 running\n"
      "  RANK  NODE  PID  DEVICE  STATE           STEP        LAST\n"
      "     0  b11   100  -       running  400 of 1000  300 ms ago\n"
      "     1  b12   101  -       running  401 of 1000  300 ms ago\n");
}

TEST(StatusScreen, ShowsWhatIsWrongFirst) {
  JobStatus job = job_of(1);
  job.leader->min_nodes = 1;
  job.leader->max_nodes = 4;
  job.leader->missing = 1;
  job.leader->members.push_back({7, "b13", "10.0.0.13", 1, {}, MemberStatus::State::kSpare});
  job.late = {{1, "b12", "no answer within 90 ms"}};
  job.nodes.pop_back();
  NodeStatus& node = job.nodes[0];
  node.workers[0].state = WorkerState::kFailed;
  node.workers[0].exit = ExitStatus::killed(SIGSEGV, true);
  node.workers[0].device = "cuda:3";
  node.workers[0].progress->values = {{"loss", 0.41}, {"lr", 1e-5}};
  node.restarts = 1;
  node.max_restarts = 3;
  node.downtime.joined = 600ms;
  node.restart_totals = {{RestartReason::kWorkerFailed, 1, 600ms}};
  node.recent_restarts = {{{},
                           Round{2},
                           RestartReason::kWorkerFailed,
                           1,
                           "b12",
                           "rank 1 ended with exit code 3",
                           {0ms, 5ms, 595ms, 0ms, 1, agent::DowntimeEnd::kStepAfter}}};
  node.until_first_step = 2s;
  node.goodput = 0.9899;
  const std::string screen = status_screen(job, 30);
  EXPECT_THAT(screen,
              HasSubstr("restarts 1 of 3; start 2.0 s, then 600 ms down after restarts: 1 worker "
                        "failed 600 ms; goodput 98.9 % of 58.0 s\n"));
  EXPECT_THAT(screen,
              HasSubstr("NODES  3 joined of 1 to 4, 1 missing, 1 late; the leader is running\n"
                        "  -  b13  10.0.0.13  1 worker  spare\n"
                        "  1  b12  10.0.0.12  1 worker  in_round  late: no answer within 90 ms\n"
                        "  0  b11"));
  EXPECT_THAT(screen, HasSubstr("cuda:3  failed, SIGSEGV (signal 11, core dumped)"));
  EXPECT_THAT(screen, HasSubstr("400 of 1000  300 ms ago  loss 0.41  lr 1e-05\n"));
  EXPECT_THAT(screen,
              HasSubstr("round 2  600 ms down  1 step repeated  rank 1 ended with exit code 3\n"));
}

TEST(StatusScreen, OfVeryManyWorkersThoseThatAreBehindAreShown) {
  JobStatus job = job_of(512);
  job.nodes[1].workers[300].state = WorkerState::kFailed;  // rank 812
  job.nodes[1].workers[300].exit = ExitStatus::exited(1);
  job.nodes[0].workers[77].progress->step = 5;
  const std::string screen = status_screen(job, 10);
  EXPECT_THAT(screen, HasSubstr("WORKERS  1 failed 1023 running\n"));
  EXPECT_THAT(screen, HasSubstr("   812  b12"));
  EXPECT_THAT(screen, HasSubstr("    77  b11"));
  EXPECT_THAT(screen, HasSubstr("… and 1014 more workers (--all)"));
  EXPECT_THAT(screen, Not(HasSubstr("  1000  b12")));
  EXPECT_THAT(status_screen(job, kAllRows), HasSubstr("  1000  b12"));
}

TEST(StatusScreen, SaysWhoWaitsForWhom) {
  JobStatus job = job_of(1);
  for (NodeStatus& node : job.nodes) {
    agent::WorkerStatus& worker = node.workers[0];
    GroupCalls group{"ddprun", 7, 2, static_cast<std::uint32_t>(worker.rank), 12};
    group.at = GroupCall{{.operation = record::Operation::kAllReduce}, 12, worker.rank == 1, 4s};
    if (worker.rank == 1) group.calls = group.at->number = 11;
    worker.calls = {group};
  }
  const std::string wait =
      "rank 1 has not come to all_reduce (call 12 of ddprun), where rank 0 waits, for 4.0 s\n";
  EXPECT_THAT(status_screen(job, 30), HasSubstr("running, all_reduce 12 for 4.0 s"));
  EXPECT_THAT(status_screen(job, 30), HasSubstr("\nWAITING\n  " + wait));
  job.nodes[1].workers[0].held = RankState::kStopped;
  EXPECT_THAT(status_screen(job, 30), HasSubstr("stopped by a signal"));
  job.nodes[0].hung = {{rdzv::Hung::Why::kStopped, {1}, "rank 1 is stopped by a signal", 4s}};
  EXPECT_THAT(status_screen(job, 30),
              HasSubstr("\nWAITING\n  HUNG: rank 1 is stopped by a signal, for 4.0 s\n  " + wait))
      << "as its agent says";
}

TEST(StatusScreen, SaysWhichRankIsSlow) {
  JobStatus job = job_of(1);
  job.nodes[0].slow = {{1, 0.93, 41ms, 340ms, "", "rank 1 on b12 comes last in 93 % of steps"}};
  job.nodes[0].rank_times = {{0, 0.5, 0.25, 0.5, 0.0, 0us}, {1, {}, 0.0, {}, 0.93, 41ms}};
  const std::string screen = status_screen(job, 30);
  EXPECT_THAT(screen, HasSubstr("\nWAITING\n  SLOW: rank 1 on b12 comes last in 93 % of steps\n"));
  EXPECT_THAT(screen, HasSubstr("LAST  "));
  EXPECT_THAT(screen, HasSubstr("ago            0 %"));
  EXPECT_THAT(screen, HasSubstr("ago  41 ms in 93 %"));
}

TEST(StatusScreen, SaysWhatGpusSayWhereThereAreSome) {
  JobStatus job = job_of(1);
  EXPECT_THAT(status_screen(job, 30), Not(HasSubstr("GPUS")));
  job.nodes[0].host = "b12";
  job.nodes[0].gpus = {
      {.index = 5,
       .uuid = "GPU-1",
       .pci_address = "",
       .ranks = {3},
       .memory_used = std::uint64_t{61} << 30,
       .memory_total = std::uint64_t{80} << 30,
       .utilization = 98,
       .temperature = 61,
       .ecc = 1,
       .xids = {79}},
      {.index = 6, .uuid = "", .pci_address = "", .ranks = {}, .trouble = "it is lost"}};
  EXPECT_THAT(
      status_screen(job, 30),
      HasSubstr("\nGPUS\n  b12 GPU 5 (rank 3): 61.0 of 80.0 GiB, 98 %, 61 °C, 1 uncorrected "
                "ECC error, Xid 79\n  b12 GPU 6: it is lost\n"));
  EXPECT_THAT(status_screen(job, 1), HasSubstr("Xid 79\n  … and 1 more (--all)\n"));
  job.nodes[0].gpus.clear();
  job.nodes[0].gpu_trouble = "NVML has not answered for 12 s";
  EXPECT_THAT(status_screen(job, 30), HasSubstr("\nGPUS\n  b12 NVML has not answered for 12 s\n"));
}

TEST(StatusScreen, SaysWhetherWorkersAreReplacedInPlace) {
  JobStatus job;
  job.nodes.resize(2);
  EXPECT_THAT(status_screen(job, 30), Not(HasSubstr("in place"))) << "nobody has asked";
  for (NodeStatus& node : job.nodes) node.replacement = ReplacementStatus{true, 2, 2, 0, ""};
  EXPECT_THAT(status_screen(job, 30),
              HasSubstr("\nworkers are replaced in place: 4 of 4 standbys prepared\n"));
  job.nodes[1].replacement = ReplacementStatus{true, 1, 2, 3, ""};
  EXPECT_THAT(status_screen(job, 30),
              HasSubstr("3 of 4 standbys prepared; 3 replaced in this round\n"));
  job.nodes[1].replacement->why_unprepared = "GPU 0 has 1.0 GiB free";
  EXPECT_THAT(
      status_screen(job, 30),
      HasSubstr("3 of 4 standbys wait, and make the program's set-up then (GPU 0 has 1.0 GiB "
                "free); 3 replaced in this round\n"));
  job.nodes[1].replacement->can_recover = false;
  EXPECT_THAT(status_screen(job, 30), Not(HasSubstr("in place"))) << "not all have said so";
  job.nodes[0].replacement->why_none = "no data for one rank";
  EXPECT_THAT(status_screen(job, 30),
              HasSubstr("\nworkers cannot be replaced in place: no data for one rank\n"));
  RestartRecord record;
  record.sentence = "rank 1 was killed";
  record.generation = 1;
  job.nodes[0].recent_restarts.push_back(record);
  EXPECT_THAT(status_screen(job, 30), HasSubstr("rank 1 was killed, replaced in place\n"));
}

TEST(StatusScreen, SaysWhatIsNotKnown) {
  JobStatus job;
  job.program = "train.py";
  job.run_id = "none";
  job.nodes.emplace_back();
  EXPECT_THAT(status_screen(job, 30), HasSubstr("job none: looking for its leader\n"));
  EXPECT_THAT(status_screen(job, 30), HasSubstr("the leader is not known or does not answer"));
  EXPECT_THAT(status_screen(JobStatus{}, 30), HasSubstr("job"));
}

TEST(StatusScreen, NothingThatAJobSaysMovesTheCursor) {
  JobStatus job;
  job.program = "größer\x1b[2J\n.py";
  job.run_id = "none";
  job.nodes.emplace_back();
  EXPECT_THAT(status_screen(job, 30), HasSubstr("größer\\x1b[2J\\n.py, job none"));
}

}  // namespace
}  // namespace ddprun::cli
