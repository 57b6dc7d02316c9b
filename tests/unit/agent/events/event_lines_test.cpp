#include "agent/events/event_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <csignal>
#include <limits>

#include "agent/events/job_history.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

const EventHead kHead{std::chrono::system_clock::from_time_t(1'760'000'000) + 42us,
                      std::chrono::steady_clock::time_point(5s + 7us), "job-1", "node0"};
const std::string kTimeAndPlace =
    R"("time":"2025-10-09T08:53:20.000042Z","monotonic_us":5000007,"job":"job-1","host":"node0")";

std::string expected(const std::string& name, const std::string& fields) {
  return R"({"schema":3,"event":")" + name + "\"," + kTimeAndPlace + "," + fields + "}\n";
}

rdzv::WorkerFailure failure() {
  rdzv::WorkerFailure out;
  out.rank = 5;
  out.local_rank = 1;
  out.node_rank = 1;
  out.host = "node1";
  out.pid = 4711;
  out.status = ExitStatus::killed(SIGSEGV, /*core_dumped=*/true);
  out.message = "no luck";
  return out;
}

const std::string kFailure =
    R"({"rank":5,"local_rank":1,"pid":4711,"node_rank":1,"host":"node1","exit_code":null,)"
    R"("signal":11,"signal_name":"SIGSEGV","core_dumped":true,"killed_for_memory":false,)"
    R"("message":"no luck","hang":null,"asked_by":null})";

TEST(EventLines, TellOfAJobAndItsRounds) {
  EXPECT_EQ(
      event_line(kHead, JobStarted{"train.py", 2, 3, 99}),
      expected("job_started", R"("program":"train.py","workers":2,"max_restarts":3,"pid":99)"));
  EXPECT_EQ(
      event_line(
          kHead,
          RoundStarted{Round{1}, "10.0.0.1", 29500, {{4, 0, 7}, {5, 1, 0}}, 12'345us, 2, 3, 6}),
      expected("round_started", R"("round":1,"master_addr":"10.0.0.1","master_port":29500,)"
                                R"("workers":[{"rank":4,"local_rank":0,"pid":7},)"
                                R"({"rank":5,"local_rank":1,"pid":null}],"since_cause_us":12345,)"
                                R"("node_rank":2,"node_count":3,"world_size":6)"));
  EXPECT_EQ(event_line(kHead, RoundStopping{Round{1}, "worker_failed"}),
            expected("round_stopping", R"("round":1,"reason":"worker_failed")"));
  EXPECT_EQ(
      event_line(kHead, Restarted{Round{2}, 1, 3, failure(), 8us}),
      expected("restarted",
               R"("round":2,"restart":1,"max_restarts":3,"failure":)" + kFailure +
                   R"(,"until_run_us":8,"lost_node":null,"nodes_gone":0,)"
                   R"("nodes_joined":0,"was_asked_for":false,"asked_by":null,"how":"restarted",)"
                   R"("generation":null,"newcomer":null)"));
}

TEST(EventLines, TellThatAWorkerWasReplacedInPlace) {
  Restarted restarted{Round{2}, 1, 3, failure(), 8us};
  restarted.in_place = {4, 1, RoundStarted::Worker{1, 0, 77}};
  EXPECT_THAT(event_line(kHead, restarted),
              ::testing::HasSubstr(R"("how":"replaced","generation":4,)"
                                   R"("newcomer":{"rank":1,"local_rank":0,"pid":77}})"));
  restarted.in_place->newcomer.reset();
  EXPECT_THAT(event_line(kHead, restarted),
              ::testing::HasSubstr(R"("how":"replaced","generation":4,"newcomer":null})"));
  EXPECT_THAT(event_line(kHead, Recovered{Round{2}, no_downtime(), 4}),
              ::testing::HasSubstr(R"("how":"replaced","generation":4})"));
}

TEST(EventLines, TellOfWhatAPersonAskedFor) {
  EXPECT_EQ(event_line(kHead, Requested{"restart", "ddpctl restart (root, pid 4711)"}),
            expected("requested", R"-("what":"restart","by":"ddpctl restart (root, pid 4711)")-"));
  Restarted restarted;
  restarted.was_asked_for = true;
  EXPECT_THAT(event_line(kHead, restarted), ::testing::HasSubstr(R"("was_asked_for":true)"));
}

TEST(EventLines, TellWhichNodeWentAndHow) {
  using How = rdzv::NodeGone::How;
  EXPECT_EQ(
      event_line(kHead,
                 Restarted{Round{2}, 0, 3, {}, 8us, rdzv::NodeGone{How::kSilent, 3, "b12"}, 2, 1}),
      expected(
          "restarted",
          R"("round":2,"restart":0,"max_restarts":3,"failure":null,"until_run_us":8,)"
          R"("lost_node":{"node_rank":3,"host":"b12","how":"silent","why":null},"nodes_gone":2,)"
          R"("nodes_joined":1,"was_asked_for":false,"asked_by":null,"how":"restarted",)"
          R"("generation":null,"newcomer":null)"));
  for (const auto& [how, name] : {std::pair{How::kDisconnected, "disconnected"},
                                  {How::kReplaced, "replaced"},
                                  {How::kLeft, "left"},
                                  {How::kStuck, "stuck"},
                                  {How::kUnresponsive, "unresponsive"},
                                  {How::kLeftOut, "left_out"}}) {
    const std::string line =
        event_line(kHead, Restarted{Round{1}, 0, 0, {}, 0us, rdzv::NodeGone{how, 0, "\xff"}, 1, 0});
    EXPECT_NE(line.find(std::string(R"("host":")") + "\xef\xbf\xbd" + R"(","how":")" + name + "\""),
              std::string::npos)
        << line;
  }
}

TEST(EventLines, TellWhyAJobEnded) {
  using Kind = rdzv::JobOutcome::Kind;
  const auto reason = [](Kind kind, int exit_code) {
    rdzv::JobOutcome outcome;
    outcome.kind = kind;
    outcome.exit_code = exit_code;
    const auto line = boost::json::parse(event_line(kHead, JobFinished{outcome, 1, 1s}));
    return std::string(line.at("reason").as_string());
  };
  EXPECT_EQ(reason(Kind::kSucceeded, 0), "all_succeeded");
  EXPECT_EQ(reason(Kind::kFailed, 110), "worker_failed") << "a worker may end with any code";
  EXPECT_EQ(reason(Kind::kFailed, 116), "worker_failed") << "without a cause it is the worker's";
  EXPECT_EQ(reason(Kind::kStopped, 143), "signal");
  EXPECT_EQ(reason(Kind::kStopped, 113), "preemption");
  EXPECT_EQ(reason(Kind::kCannotRun, 2), "refused_by_leader");
  EXPECT_EQ(reason(Kind::kCannotRun, 110), "rendezvous_timeout");
  EXPECT_EQ(reason(Kind::kCannotRun, 111), "leader_lost");
  EXPECT_EQ(reason(Kind::kCannotRun, 112), "below_minimum");
  EXPECT_EQ(reason(Kind::kCannotRun, 114), "cannot_run");
  EXPECT_EQ(reason(Kind::kCannotRun, 115), "worker_stuck");
}

TEST(EventLines, KeepExitCodeAndSignalApart) {
  EXPECT_EQ(
      event_line(kHead,
                 WorkerExited{Round{0}, {1, 1, 12}, ExitStatus::exited(139), false, false, "oh"}),
      expected("worker_exited",
               R"("round":0,"rank":1,"local_rank":1,"pid":12,"exit_code":139,"signal":null,)"
               R"("signal_name":null,"core_dumped":false,"was_told_to_stop":false,)"
               R"("killed_for_memory":false,"message":"oh","progress":null)"));
  WorkerProgress progress;
  progress.step = 412;
  progress.total_steps = 1000;
  progress.since_step = 35s;
  progress.collectives = 7;
  progress.phase = WorkerPhase::kCollective;
  progress.since_phase = 1ms;
  progress.values = {{"loss", 0.25}, {"norm", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(
      event_line(kHead,
                 WorkerExited{
                     Round{0}, {1, 1, 12}, ExitStatus::killed(SIGKILL), true, true, "", progress}),
      expected(
          "worker_exited",
          R"("round":0,"rank":1,"local_rank":1,"pid":12,"exit_code":null,"signal":9,)"
          R"("signal_name":"SIGKILL","core_dumped":false,"was_told_to_stop":true,)"
          R"("killed_for_memory":true,"message":"",)"
          R"("progress":{"step":412,"total_steps":1000,"step_kind":"program","since_step_us":35000000,)"
          R"("phase":"collective","since_phase_us":1000,"collectives":7,"values":{"loss":2.5E-1,"norm":null}})"));
}

TEST(EventLines, TellOfTheRest) {
  EXPECT_EQ(event_line(kHead, PreemptNotice{"aws", "i-0abc",
                                            std::chrono::system_clock::time_point(1'796'040'000s),
                                            "instance i-0abc is stopped"}),
            expected("preempt_notice", R"("from":"aws","instance":"i-0abc",)"
                                       R"("at":"2026-11-30T12:00:00.000000Z",)"
                                       R"("sentence":"instance i-0abc is stopped")"));
  EXPECT_EQ(event_line(kHead, PreemptNotice{"command", "", {}, "node 7 is wanted"}),
            expected("preempt_notice", R"("from":"command","instance":null,"at":null,)"
                                       R"("sentence":"node 7 is wanted")"));
  EXPECT_EQ(event_line(kHead, HealthSeen{"warning", "/dev/shm is nearly full"}),
            expected("health", R"("severity":"warning","sentence":"/dev/shm is nearly full")"));
  EXPECT_EQ(event_line(kHead, NodeLeftOut{"b1", "Ann"}),
            expected("left_out", R"("node":"b1","why":"Ann")"));
  EXPECT_EQ(event_line(kHead, UnfitNode{"b1", "GPU 3 is lost"}),
            expected("unfit_node", R"("node":"b1","why":"GPU 3 is lost")"));
  EXPECT_EQ(event_line(kHead, SignalReceived{SIGTERM}),
            expected("signal", R"("signal":15,"signal_name":"SIGTERM")"));
  EXPECT_EQ(event_line(kHead, WorkerKilledAfterGrace{Round{0}, {2, 0, 3}, 30s}),
            expected("worker_killed_after_grace",
                     R"("round":0,"rank":2,"local_rank":0,"pid":3,"grace_us":30000000)"));
  EXPECT_EQ(event_line(kHead, KeeperReplaced{8}), expected("keeper_replaced", R"("pid":8)"));
  EXPECT_EQ(event_line(kHead, EventsLost{3}), expected("events_lost", R"("count":3)"));
  EXPECT_EQ(
      event_line(kHead, ReplicasDiffer{Round{1}, 40, 0, 2, "they differ"}),
      expected("replicas_differ", R"("round":1,"step":40,"ranks":[0,2],"sentence":"they differ")"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(event_line(kHead, NanReported{Round{1}, 3, 120, {"loss", nan}, "rank 3 reported it"}),
            expected("nan", R"("round":1,"rank":3,"step":120,"name":"loss","value":"nan",)"
                            R"("sentence":"rank 3 reported it")"));
}

TEST(EventLines, TellHowAJobEnded) {
  using Kind = rdzv::JobOutcome::Kind;
  rdzv::JobOutcome outcome;
  outcome.restarts = 2;
  EXPECT_EQ(
      event_line(kHead, JobFinished{outcome, 0, 9s}),
      expected(
          "finished",
          R"("outcome":"succeeded","exit_code":0,"signal":null,)"
          R"("cause":null,"why":"","wall_us":9000000,"restarts":2,)"
          R"("downtime_us":0,"stopped_us":0,"started_us":0,"joined_us":0,"repeated_us":0,)"
          R"("steps_repeated":0,"until":"step_after","goodput":null,"reason":"all_succeeded","lost_node":null,"requests":[])"));
  outcome.kind = Kind::kFailed;
  outcome.cause = failure();
  outcome.requests = {"ddpctl restart (root, pid 17)"};
  EXPECT_EQ(
      event_line(kHead, JobFinished{outcome, 139, 9s}),
      expected(
          "finished",
          R"("outcome":"failed","exit_code":139,"signal":null,"cause":)" + kFailure +
              R"(,"why":"","wall_us":9000000,"restarts":2,"downtime_us":0,"stopped_us":0,"started_us":0,"joined_us":0,"repeated_us":0,)"
              R"("steps_repeated":0,"until":"step_after","goodput":null,)"
              R"("reason":"worker_failed","lost_node":null,)"
              R"-("requests":["ddpctl restart (root, pid 17)"])-"));
  rdzv::JobOutcome stopped;
  stopped.kind = Kind::kStopped;
  stopped.stop_signal = SIGINT;
  EXPECT_EQ(
      event_line(kHead, JobFinished{stopped, 130, 1s}),
      expected(
          "finished",
          R"("outcome":"stopped","exit_code":130,"signal":2,)"
          R"("cause":null,"why":"","wall_us":1000000,"restarts":0,)"
          R"("downtime_us":0,"stopped_us":0,"started_us":0,"joined_us":0,"repeated_us":0,)"
          R"("steps_repeated":0,"until":"step_after","goodput":null,"reason":"signal","lost_node":null,"requests":[])"));
  stopped.exit_code = 113;
  EXPECT_NE(event_line(kHead, JobFinished{stopped, 113, 1s}).find("\"preempted\""),
            std::string::npos);
}

TEST(EventLines, AreJsonWhateverAWorkerWrote) {
  const std::string message = std::string("a\0b\"\n\xff\xc3\xa4", 8) + std::string(9000, 'x');
  const std::string line = event_line(
      kHead, WorkerExited{Round{0}, {0, 0, 1}, ExitStatus::exited(1), false, false, message});
  ASSERT_EQ(line.find('\n'), line.size() - 1);
  const auto parsed = boost::json::parse(line).as_object();
  const std::string text(parsed.at("message").as_string());
  EXPECT_EQ(text.substr(0, 10), std::string("a\0b\"\n\xef\xbf\xbd\xc3\xa4", 10));
  EXPECT_LT(text.size(), 5000U);
}

// The parts of a downtime, as JSON has them.
constexpr Downtime kDowntime{50us, 1us, 2us, 3us, 7, DowntimeEnd::kStepAfter};
const std::string kDowntimeFields =
    R"("downtime_us":56,"stopped_us":50,"started_us":1,"joined_us":2,"repeated_us":3,)"
    R"("steps_repeated":7,"until":"step_after")";

TEST(EventLines, TellWhenEveryRankIsBackAndWhatItTook) {
  const rdzv::WaitingFor wait{.group = "ddprun",
                              .number = 17,
                              .operation = record::Operation::kAllReduce,
                              .waited = 1500ms,
                              .waiting = {0, 1},
                              .missing = {2}};
  EXPECT_EQ(
      event_line(kHead, WaitSeen{Round{2}, wait}),
      expected("waiting_for",
               R"("round":2,"ranks":[2],"waiting":[0,1],"group":"ddprun","call":"all_reduce",)"
               R"("number":17,"waited_us":1500000,"sentence":"rank 2 has not come to all_reduce )"
               R"((call 17 of ddprun), where ranks 0 and 1 wait")"));
  const rdzv::Hung hung{.group = "ddprun",
                        .number = 17,
                        .ranks = {2},
                        .what = "all_reduce (call 17 of ddprun)",
                        .waited = 1500ms,
                        .waiting = {0, 1}};
  EXPECT_EQ(
      event_line(kHead, HangSeen{Round{2}, hung}),
      expected("hung",
               R"("round":2,"ranks":[2],"why":"stopped","group":"ddprun","number":17,)"
               R"("waiting":[0,1],"waited_us":1500000,"sentence":"rank 2 is stopped by a )"
               R"x(signal, and ranks 0 and 1 wait for it in all_reduce (call 17 of ddprun)")x"));
  const rdzv::SlowRank slow{
      .rank = 5, .share = 0.75, .lag = 41ms, .step = 340ms, .has_steps = true};
  EXPECT_EQ(
      event_line(kHead, SlowSeen{Round{2}, slow, "b1", "next_batch (loader.py:40)"}),
      expected("slow",
               R"("round":2,"rank":5,"on_host":"b1","share":7.5E-1,"lag_us":41000,)"
               R"x("step_us":340000,"where":"next_batch (loader.py:40)","sentence":"rank 5 on )x"
               R"x(b1 comes last in 75 % of steps, 41 ms late (12 % of a step): next_batch )x"
               R"x((loader.py:40)")x"));
  HangReport report;
  report.round = Round{2};
  report.hung = hung;
  RanksAlike culprit;
  culprit.ranks = {2};
  culprit.hosts = {"b12"};
  culprit.pid = 4711;
  culprit.state = "T (stopped)";
  culprit.call = "in no call";
  culprit.since = 1500ms;
  culprit.step = 16;
  culprit.since_step = 1600ms;
  culprit.stack = "load\nmain\n";
  report.culprits = {culprit};
  EXPECT_EQ(
      event_line(kHead, HangReported{report}),
      expected("hang_report",
               R"("round":2,"ranks":[2],"sentence":"rank 2 is stopped by a signal, and )"
               R"x(ranks 0 and 1 wait for it in all_reduce (call 17 of ddprun)",)x"
               R"x("culprits":[{"ranks":[2],"hosts":["b12"],"pid":4711,"state":"T (stopped)",)x"
               R"("call":"in no call","since_us":1500000,"step":16,"since_step_us":1600000,)"
               R"("stack":"load\nmain\n","trouble":""}],"others":[])"));
  EXPECT_EQ(event_line(kHead, Recovered{Round{2}, kDowntime}),
            expected("recovered", R"("round":2,)" + kDowntimeFields +
                                      R"(,"how":"restarted","generation":null)"));
  Downtime unknown;
  unknown.until = DowntimeEnd::kFirstStep;
  EXPECT_THAT(event_line(kHead, Recovered{Round{2}, unknown}),
              ::testing::HasSubstr(R"("steps_repeated":null,"until":"first_step")"));
}

TEST(EventLines, TellWhatAllRestartsOfAJobTook) {
  const auto line = boost::json::parse(event_line(kHead, JobFinished{{}, 0, 9s, kDowntime, 0.75}));
  EXPECT_EQ(line.at("downtime_us"), 56);
  EXPECT_EQ(line.at("steps_repeated"), 7);
  EXPECT_EQ(line.at("goodput"), 0.75);
}

}  // namespace
}  // namespace ddprun::agent
