// What the live page is told, read back as the page reads it.
#include "agent/dashboard/dashboard_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/unit/agent/status/sample_status.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;
using std::chrono::steady_clock;
using ::testing::ElementsAre;

const steady_clock::time_point kNow{1000s};
constexpr std::int64_t kAtMs = 1'790'000'050'000;

json::object parsed(const std::string& text) { return json::parse(text).as_object(); }

std::vector<std::string> fields_of(const json::object& object) {
  std::vector<std::string> names;
  for (const auto& field : object) names.emplace_back(field.key());
  return names;
}

std::string failure_line(const std::string& time, int rank, const std::string& told,
                         const std::string& code = "1") {
  return R"({"schema":1,"event":"worker_exited","time":")" + time + R"(","rank":)" +
         std::to_string(rank) + R"(,"exit_code":)" + code + R"(,"was_told_to_stop":)" + told +
         R"(,"message":"x"})";
}

TEST(DashboardFeed, TheWholeHasAll) {
  DashboardFeed feed;
  feed.look(sample_job(), kNow);
  const auto whole = parsed(feed.whole());
  EXPECT_EQ(whole.at("whole"), true);
  EXPECT_EQ(whole.at("at"), kAtMs);
  const auto& job = whole.at("job").as_object();
  EXPECT_EQ(job.at("program"), "train.py");
  EXPECT_EQ(job.at("state"), "running");
  EXPECT_EQ(job.at("round"), 3);
  EXPECT_EQ(job.at("world_size"), 4);
  EXPECT_EQ(job.at("restarts"), 2);
  EXPECT_EQ(job.at("began_at_ms"), kAtMs - 100'000);
  EXPECT_EQ(job.at("until_run_ms"), 1500);
  EXPECT_EQ(job.at("until_first_step_ms"), 1500);
  EXPECT_EQ(job.at("downtime_ms"), 8500);
  EXPECT_EQ(job.at("steps_repeated"), 42);
  EXPECT_EQ(job.at("goodput_permille"), 900);
  EXPECT_EQ(whole.at("ranks"), json::parse(R"([[2,1,0,4711,1000,"cuda:0"],[3,1,1,0,0,""]])"));
  EXPECT_EQ(whole.at("live"), json::parse(R"([[2,1,3,412,1790000049750,0],[3,3,0,-1,0,0]])"));
  EXPECT_EQ(whole.at("nodes"), json::parse(R"([[1,"b7","running",false,2]])"));
  EXPECT_EQ(
      whole.at("restarts"),
      json::parse(R"([[1790000000000,3,"node_lost",8000,"node 2 (b9) was lost",1500,false]])"));
  EXPECT_EQ(whole.at("downtime_by_cause"),
            json::parse(R"([["worker_failed",2,500],["node_lost",1,8000]])"));
  EXPECT_EQ(
      whole.at("gpus"),
      json::parse(R"([["b7","NVML has not answered for 12 s"],["b7","GPU 5 (rank 4): 61.0 of )"
                  R"(80.0 GiB, 98 %, 61 °C, 2 uncorrected ECC errors, Xid 94"],)"
                  R"(["b7","GPU 6: it is lost"]])"));
  EXPECT_EQ(whole.at("leader").at("missing"), 1);
  EXPECT_EQ(whole.at("leader").at("late"),
            json::parse(R"([["b6","it has not answered within 100 ms"]])"));
  EXPECT_EQ(whole.at("loss"), json::parse("[[412,0.25]]"));
}

TEST(DashboardFeed, TheLossIsToldPointByPoint) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  WorkerProgress& progress = *job.nodes[0].workers[0].progress;
  feed.look(job, kNow);
  progress.step = 413;
  progress.values[1].value = 0.125;
  feed.look(job, kNow + 1s);
  auto change = parsed(feed.change());
  EXPECT_EQ(change.at("loss_from"), 1);
  EXPECT_EQ(change.at("loss"), json::parse("[[413,0.125]]"));
  progress.step = 400;  // after a restart from a checkpoint
  feed.look(job, kNow + 2s);
  change = parsed(feed.change());
  EXPECT_EQ(change.at("loss_from"), 0);
  EXPECT_EQ(change.at("loss"), json::parse("[[400,0.125]]"));
}

TEST(DashboardFeed, TheLossIsKeptWhileNobodyWatches) {
  DashboardFeed feed;
  NodeStatus own = sample_node();
  feed.sample(own);
  EXPECT_EQ(parsed(feed.whole()).at("loss"), json::array()) << "rank 0 is another node's";
  own.rank_offset = 0;
  for (const int step : {1, 2}) {
    own.workers[0].progress->step = step;
    feed.sample(own);
  }
  EXPECT_EQ(parsed(feed.whole()).at("loss"), json::parse("[[1,0.25],[2,0.25]]"));
}

TEST(DashboardFeed, AChangeHasWhatIsDifferentAndNothingElse) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  job.nodes[0].workers[0].progress->values.clear();
  feed.look(job, kNow);
  job.when += 1s;
  job.nodes[0].wall += 1s;
  job.nodes[0].workers[0].progress->since_step += 1s;
  feed.look(job, kNow + 1s);
  EXPECT_THAT(fields_of(parsed(feed.change())), ElementsAre("at"));

  job.when += 1s;
  job.nodes[0].wall += 1s;
  job.nodes[0].workers[0].progress->step = 416;
  job.nodes[0].workers[0].progress->since_step = 250ms;
  feed.look(job, kNow + 2s);
  const auto change = parsed(feed.change());
  EXPECT_THAT(fields_of(change), ElementsAre("at", "live"));
  EXPECT_EQ(change.at("live"), json::parse(R"([[2,1,3,416,1790000051750,500000]])"));
}

TEST(DashboardFeed, ClocksThatAreNotQuiteAlikeAreNoChange) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  feed.look(job, kNow);
  for (const auto jitter : {-90ms, 120ms, 30ms}) {
    job.nodes[0].workers[0].progress->since_step = 250ms + jitter;
    job.nodes[0].wall = 100s + jitter;
    feed.look(job, kNow);
    EXPECT_THAT(fields_of(parsed(feed.change())), ElementsAre("at"));
  }
}

TEST(DashboardFeed, ANewRoundIsToldWhole) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  feed.look(job, kNow);
  job.nodes[0].round = Round{4};
  job.nodes[0].workers.pop_back();
  feed.look(job, kNow + 1s);
  const auto change = parsed(feed.change());
  EXPECT_EQ(change.at("whole"), true);
  EXPECT_EQ(change.at("ranks").as_array().size(), 1U);
}

TEST(DashboardFeed, RanksOfANodeThatIsLateStay) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  NodeStatus other = sample_node();
  other.host = "b6";
  other.node_rank = 0;
  other.workers[0].rank = 0;
  other.workers[1].rank = 1;
  job.nodes.insert(job.nodes.begin(), other);
  feed.look(job, kNow);
  job.nodes.erase(job.nodes.begin());
  feed.look(job, kNow + 1s);
  EXPECT_EQ(parsed(feed.whole()).at("ranks").as_array().size(), 4U);
  EXPECT_FALSE(parsed(feed.change()).contains("ranks"));
}

TEST(DashboardFeed, OfNodesInDifferentRoundsTheLatestCounts) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  NodeStatus left_behind = sample_node();
  left_behind.round = Round{2};
  left_behind.workers[0].rank = 9;
  job.nodes.insert(job.nodes.begin(), left_behind);
  feed.look(job, kNow);
  const auto whole = parsed(feed.whole());
  EXPECT_EQ(whole.at("job").at("round"), 3);
  EXPECT_EQ(whole.at("ranks").as_array().size(), 2U);
}

TEST(DashboardFeed, RestartsThatSeveralNodesTellOfAreOne) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  job.nodes.push_back(sample_node());
  feed.look(job, kNow);
  EXPECT_EQ(parsed(feed.whole()).at("restarts").as_array().size(), 1U);
}

TEST(DashboardFeed, TheLastFailureIsTheLatestThatNobodyAskedFor) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  job.nodes[0].events = {failure_line("2026-09-21T14:13:20.000001Z", 1, "false"),
                         failure_line("2026-09-21T14:13:20.000002Z", 2, "false"),
                         failure_line("2026-09-21T14:13:20.000003Z", 3, "true"),
                         failure_line("2026-09-21T14:13:20.000004Z", 0, "false", "0"),
                         "this is no JSON",
                         R"({"event":"worker_exited","time":"2027"})"};
  feed.look(job, kNow);
  EXPECT_EQ(parsed(feed.whole()).at("failure").at("rank"), 2);
  feed.look(job, kNow);
  EXPECT_FALSE(parsed(feed.change()).contains("failure"));
  job.nodes[0].events = {};  // forgotten there, not here
  feed.look(job, kNow);
  EXPECT_EQ(parsed(feed.whole()).at("failure").at("rank"), 2);
}

TEST(DashboardFeed, TheEndIsToldOnce) {
  DashboardFeed feed;
  feed.look(sample_job(), kNow);
  feed.end("train.py FAILED: rank 1", sample_job(), kNow);
  EXPECT_THAT(fields_of(parsed(feed.change())), ElementsAre("at", "end"));
  EXPECT_EQ(parsed(feed.whole()).at("end"), "train.py FAILED: rank 1");
}

TEST(DashboardFeed, TheEndHasHowTheRanksOfThisNodeHaveEnded) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  feed.look(job, kNow);
  job.nodes.resize(1);
  job.nodes[0].workers[1].state = WorkerState::kStopped;
  job.nodes[0].events = {failure_line("2026-11-21T12:00:01Z", 1, "false")};
  feed.end("train.py FAILED: rank 1", job, kNow);
  const json::object change = parsed(feed.change());
  ASSERT_EQ(change.at("live").as_array().size(), 1U) << change;
  EXPECT_EQ(change.at("live").at(0).at(0), job.nodes[0].workers[1].rank);
  EXPECT_EQ(change.at("live").at(0).at(1), static_cast<int>(WorkerState::kStopped));
  EXPECT_EQ(change.at("failure").at("rank"), 1);
}

TEST(DashboardFeed, TextOfWorkersIsAlwaysJson) {
  DashboardFeed feed;
  JobStatus job = sample_job();
  job.program = "\xff</script>\n";
  job.nodes[0].workers[0].device = "\"\xfe";
  feed.look(job, kNow);
  const auto whole = parsed(feed.whole());
  EXPECT_EQ(whole.at("job").at("program"), "\xEF\xBF\xBD</script>\n");
  EXPECT_EQ(feed.whole().find('\n'), std::string::npos) << "an event is one line";
}

TEST(Curve, KeepsABoundedNumberOfPointsOverAll) {
  Curve curve;
  constexpr int kCount = 100'000;
  for (int step = 0; step < kCount; ++step) curve.add({step, 1.0 * step});
  const auto& points = curve.points();
  EXPECT_LE(points.size(), Curve::kPointsMax);
  EXPECT_GE(points.size(), Curve::kPointsMax / 2);
  EXPECT_EQ(points.front().step, 0);
  EXPECT_GT(points.back().step, kCount - 500);
  for (std::size_t i = 2; i < points.size(); ++i) {
    EXPECT_EQ(points[i].step - points[i - 1].step, points[1].step) << "evenly";
  }
}

TEST(Curve, AStepThatComesAgainReplacesWhatWasAfterIt) {
  Curve curve;
  for (int step = 1; step <= 5; ++step) curve.add({step, 1});
  curve.settle();
  curve.add({3, 2});
  EXPECT_EQ(curve.changed_from(), 2U);
  EXPECT_THAT(curve.points(),
              ElementsAre(Curve::Point{1, 1}, Curve::Point{2, 1}, Curve::Point{3, 2}));
}

TEST(Curve, TheSamePointAgainIsNoNews) {
  Curve curve;
  curve.add({3, 2});
  curve.settle();
  curve.add({3, 2});
  curve.add({4, std::numeric_limits<double>::quiet_NaN()});
  EXPECT_FALSE(curve.changed_from());
  EXPECT_EQ(curve.points().size(), 1U);
}

}  // namespace
}  // namespace ddprun::agent
