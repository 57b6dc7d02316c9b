// The status of a node and of a job as JSON: what one agent writes, another reads as the same.
#include "agent/status/job_status.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

std::chrono::system_clock::time_point at(std::int64_t us) {
  return std::chrono::system_clock::time_point(std::chrono::microseconds(us));
}

NodeStatus full_node() {
  NodeStatus node;
  node.host = "b12";
  node.agent_pid = 4242;
  node.state = NodeState::kStopping;
  node.leads = true;
  node.round = Round{2};
  node.node_rank = 1;
  node.node_count = 2;
  node.world_size = 4;
  node.rank_offset = 2;
  node.master_addr = "b11";
  node.master_port = 29501;
  node.round_age = 15s;
  node.local_world_size = 2;
  WorkerProgress progress;
  progress.step = 412;
  progress.total_steps = 1000;
  progress.since_step = 1500us;
  progress.collectives = 900;
  progress.phase = WorkerPhase::kSaving;
  progress.since_phase = 20us;
  progress.values = {{"loss", 0.41}, {"lr", 1e-5}};
  node.workers = {{2, 0, 77, "cuda:0", WorkerState::kRunning, std::nullopt, progress},
                  {3, 1, 78, "", WorkerState::kFailed, ExitStatus::killed(11, true), std::nullopt}};
  GroupCalls group{"ddprun", record::id_of("ddprun"), 4, 2, 17};
  group.at = GroupCall{{.operation = record::Operation::kBroadcast,
                        .type = 6,
                        .root = 1,
                        .elements = 12,
                        .signature = UINT64_MAX},
                       17,
                       /*is_over=*/false,
                       1500us};
  node.workers[0].calls = {group, {"pair", 1, 2, 0, 0}};
  node.workers[0].calls[0].since_entry = 700us;
  node.workers[0].held = RankState::kFrozen;
  node.workers[0].held_for = 3s;
  node.longest_wait = 41s;
  node.hung = {{rdzv::Hung::Why::kUninterruptible, {3, 5}, "ranks 3 and 5 do not return", 9s}};
  node.slow = {{5, 0.9375, 41ms, 340ms, "next_batch (loader.py:40)", "rank 5 comes last"}};
  node.rank_times = {{0, 0.5, 0.25, 0.5, 0.0, 0us}, {5, {}, 0.0, {}, 0.9375, 41ms}};
  node.workers_left_out = 3;
  node.restarts = 1;
  node.max_restarts = 3;
  node.wall = 61s;
  node.until_run = 12ms;
  node.until_first_step = 80ms;
  node.downtime = {1ms, 2ms, 300ms, 37ms, 12, DowntimeEnd::kStepAfter};
  node.goodput = 0.75;
  node.restart_totals = {{RestartReason::kWorkerFailed, 1, 300ms},
                         {RestartReason::kRequested, 1, 40ms}};
  node.recent_restarts = {
      {at(1'700'000'000'123'456),
       Round{1},
       RestartReason::kWorkerFailed,
       3,
       "b12",
       "rank 3",
       {1ms, 1ms, 298ms, 0ms, {}, DowntimeEnd::kFirstStep}},
      {at(1'700'000'001'000'000), Round{2}, RestartReason::kRequested, {}, "", "asked for", {}}};
  node.store = StoreStatus{1000, 4, 12, 4096};
  node.events = {R"({"event":"job_started","workers":2})", R"({"event":"signal","signal":10})"};
  return node;
}

JobStatus full_job() {
  JobStatus job;
  job.run_id = "train-7";
  job.program = "train.py";
  job.version = "0.1.0";
  job.when = at(1'700'000'002'000'000);
  job.asked_host = "b12";
  LeaderStatus leader;
  leader.state = "gathering";
  leader.round = Round{3};
  leader.min_nodes = 2;
  leader.max_nodes = 4;
  leader.missing = 2;
  leader.missing_ranks = {0, 3};
  leader.left = 25s;
  leader.restarts = 1;
  leader.max_restarts = 3;
  leader.members = {{0, "b11", "10.0.0.11", 2, 1, MemberStatus::State::kInRound},
                    {7, "b13", "10.0.0.13", 2, std::nullopt, MemberStatus::State::kSpare}};
  job.leader = leader;
  job.nodes = {full_node(), NodeStatus{}};
  job.late = {{7, "b13", "no answer within 100 ms"}};
  return job;
}

TEST(JobStatus, AnOperationOfALaterVersionIsAnother) {
  std::string text = to_json(full_node());
  text.replace(text.find("\"broadcast\""), 11, "\"unheard_of\"");
  const auto node = node_status_from(text);
  ASSERT_TRUE(node) << node.error().to_string();
  EXPECT_EQ(node->workers.at(0).calls.at(0).at->call.operation, record::Operation::kOther);
}

// What a judge of hangs gets from the nodes of a job of 1,024 ranks, each in three groups: the bar is 64 KiB for each
// rank, in text and in memory.
TEST(JobStatus, OfARankIsFewBytes) {
  NodeStatus node = full_node();
  GroupCalls group = node.workers[0].calls[0];
  group.name = "a group with a name of 32 bytes.";
  WorkerStatus worker = node.workers[0];
  worker.calls.assign(3, group);
  node.workers.assign(8, worker);
  const std::size_t text = to_json(node).size() / node.workers.size();
  worker.calls.assign(record::kGroupsMax, group);
  node.workers.assign(8, worker);
  const std::size_t most = to_json(node).size() / node.workers.size();
  std::printf(
      "%zu bytes for a rank in 3 groups, %zu for one in %zu; %zu for each group in memory\n", text,
      most, record::kGroupsMax, sizeof(GroupCalls));
  EXPECT_LT(text, 4096U);
  EXPECT_LT(most, 16'384U);
  EXPECT_LT(sizeof(GroupCalls) * record::kGroupsMax, 16'384U);
}

TEST(JobStatus, ReadsAsWhatWasWritten) {
  const auto node = node_status_from(to_json(full_node()));
  ASSERT_TRUE(node) << node.error().to_string();
  EXPECT_EQ(*node, full_node());
  const auto job = job_status_from(to_json(full_job()));
  ASSERT_TRUE(job) << job.error().to_string();
  EXPECT_EQ(*job, full_job());
  const auto empty = job_status_from(to_json(JobStatus{}));
  ASSERT_TRUE(empty) << empty.error().to_string();
  EXPECT_EQ(*empty, JobStatus{});
}

TEST(JobStatus, LeavesOutWhatDoesNotFit) {
  const JobStatus job = full_job();
  EXPECT_EQ(to_json_within(job, 1'000'000), to_json(job));
  JobStatus large = job;
  const std::string name(250, 'n');
  large.leader->members.assign(300, {1, name, name, 1, {}, MemberStatus::State::kSpare});
  large.nodes.assign(200, full_node());
  large.late.assign(300, {1, name, name});
  for (const std::size_t bytes_max : {300'000, 100'000, 10'000, 1'000}) {
    const std::string text = to_json_within(large, bytes_max);
    EXPECT_LE(text.size(), bytes_max);
    const auto read = job_status_from(text);
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(
        read->leader->members.size() + static_cast<std::size_t>(read->leader->members_left_out),
        300U);
    EXPECT_EQ(read->nodes.size() + static_cast<std::size_t>(read->nodes_left_out), 200U);
  }
}

TEST(JobStatus, GivesEveryStateAndReasonANameOfItsOwn) {
  for (const auto state : {NodeState::kLooking, NodeState::kWaiting, NodeState::kRunning,
                           NodeState::kStopping, NodeState::kEnded}) {
    NodeStatus node;
    node.state = state;
    EXPECT_EQ(node_status_from(to_json(node)).value().state, state) << name_of(state);
  }
  for (const auto state : {WorkerState::kNotStarted, WorkerState::kRunning, WorkerState::kSucceeded,
                           WorkerState::kFailed, WorkerState::kStopped}) {
    NodeStatus node;
    node.workers = {WorkerStatus{.device = {}, .state = state, .exit = {}, .progress = {}}};
    EXPECT_EQ(node_status_from(to_json(node)).value().workers.at(0).state, state);
  }
  for (const auto reason :
       {RestartReason::kWorkerFailed, RestartReason::kNodeLost, RestartReason::kNodeLeft,
        RestartReason::kNodeJoined, RestartReason::kRequested, RestartReason::kOther}) {
    NodeStatus node;
    node.restart_totals = {{reason, 1, 0us}};
    EXPECT_EQ(node_status_from(to_json(node)).value().restart_totals.at(0).reason, reason);
  }
}

TEST(JobStatus, HoldsWhateverAWorkerCallsItself) {
  NodeStatus node;
  node.host = "b\xff\"\n";
  node.recent_restarts = {{at(0), Round{1}, RestartReason::kOther, {}, "", "\xc3(", {}}};
  const auto read = node_status_from(to_json(node));
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->host, "b\xEF\xBF\xBD\"\n");
  EXPECT_EQ(read->recent_restarts.at(0).sentence, "\xEF\xBF\xBD(");
}

TEST(JobStatus, AValueThatIsNoNumberStaysNone) {
  NodeStatus node = full_node();
  node.workers[0].progress->values = {{"loss", std::nan("")}};
  const auto read = node_status_from(to_json(node));
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_TRUE(std::isnan(read->workers.at(0).progress->values.at(0).value));
}

// Ten times the longest wait is a time limit.
TEST(JobStatus, ALongTimeOfAnotherNodeOverflowsNothing) {
  NodeStatus node = full_node();
  node.longest_wait = std::chrono::microseconds(INT64_MAX / 1000);
  node.round_age = std::chrono::microseconds(-INT64_MAX / 1000);
  const auto read = node_status_from(to_json(node));
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->longest_wait, std::chrono::years(10));
  EXPECT_EQ(read->round_age, -std::chrono::years(10));
  const rdzv::HangTimeout automatic{.is_automatic = true};
  EXPECT_EQ(automatic.limit(read->longest_wait), std::chrono::years(100));
}

TEST(JobStatus, RefusesWhatIsCutOffOrOfAnotherKind) {
  const std::string whole = to_json(full_job());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_FALSE(job_status_from(std::string_view(whole).substr(0, size))) << size;
  }
  const auto with = [&](std::string_view field, boost::json::value value) {
    boost::json::object object = boost::json::parse(to_json(full_node())).as_object();
    object[boost::json::string_view(field.data(), field.size())] = std::move(value);
    return node_status_from(boost::json::serialize(object));
  };
  EXPECT_TRUE(with("a field of a later version", 1));
  EXPECT_FALSE(with("host", 1));
  EXPECT_FALSE(with("host", nullptr));
  EXPECT_FALSE(with("state", "dancing"));
  EXPECT_FALSE(with("master_port", 70000));
  EXPECT_FALSE(with("round", -1));
  EXPECT_FALSE(with("workers", boost::json::object()));
  EXPECT_FALSE(with("wall_us", INT64_MAX));
  EXPECT_FALSE(with("wall_us", "long"));
}

}  // namespace
}  // namespace ddprun::agent
