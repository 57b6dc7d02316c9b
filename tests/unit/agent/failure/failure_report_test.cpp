#include "agent/failure/failure_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <csignal>
#include <limits>

namespace ddprun::agent {
namespace {

using ::testing::HasSubstr;

using Kind = rdzv::JobOutcome::Kind;

rdzv::WorkerFailure failure(int rank, ExitStatus status) {
  rdzv::WorkerFailure out;
  out.rank = rank;
  out.local_rank = rank;
  out.host = "node0";
  out.pid = 4700 + rank;
  out.status = status;
  out.when = std::chrono::system_clock::from_time_t(1'760'000'000) + std::chrono::milliseconds(42);
  return out;
}

class FailureReport : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
  }
};

TEST(Summary, SaysWhatTheJobTookAndWhatItsRestartsCost) {
  using namespace std::chrono_literals;
  rdzv::JobOutcome outcome;
  EXPECT_EQ(summary(outcome, "train.py", 999ms, no_downtime()),
            "ddprun: train.py took 999 ms, without a restart\n");
  outcome.restarts = 1;
  const Downtime full{12ms, 3ms, 1100ms, 310ms, 31, DowntimeEnd::kStepAfter};
  EXPECT_EQ(summary(outcome, "train.py", 59'999ms, full),
            "ddprun: train.py took 59.9 s, 1 restart cost 1.4 s of it: 12 ms to stop, 3 ms to "
            "start, 1.1 s to the first step, 310 ms for 31 steps again\n");
  const Downtime none_again{12ms, 3ms, 1100ms, 0ms, 0, DowntimeEnd::kStepAfter};
  EXPECT_THAT(
      summary(outcome, "train.py", 9s, none_again),
      HasSubstr("cost 1.1 s of it: 12 ms to stop, 3 ms to start, 1.1 s to the first step\n"));
  const Downtime unknown{12ms, 3ms, 1100ms, 0ms, {}, DowntimeEnd::kFirstStep};
  EXPECT_THAT(summary(outcome, "train.py", 9s, unknown),
              HasSubstr("1.1 s to the first step; how many steps were repeated is not known\n"));
  outcome.restarts = 3;
  const Downtime no_steps{60s, 1s, 0ms, 0ms, {}, DowntimeEnd::kWorkersRun};
  EXPECT_EQ(
      summary(outcome, "train.py", 25h + 2min + 3s, no_steps),
      "ddprun: train.py took 25 h 02 min 03 s, 3 restarts cost 1 min 01 s of it, counted until "
      "the workers had been started again, because the program reports no training steps\n");
  outcome.restarts = 1;
  EXPECT_THAT(summary(outcome, "train.py", 9s, none_again, 0.9899),
              HasSubstr(" to the first step; goodput 98.9 % since the first step\n"));
}

TEST_F(FailureReport, SaysThatAWorkerHungAndWhere) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(3, ExitStatus::killed(SIGKILL, false));
  outcome.cause->hang = "rank 3 is stopped by a signal";
  outcome.cause->message = "load (loader.cpp:3)\nmain (train.cpp:9)\n";
  const std::string report = failure_report(outcome, "train");
  EXPECT_THAT(report,
              HasSubstr("ddprun: train FAILED: rank 3 (pid 4703) hung: rank 3 is stopped by a "
                        "signal\n"));
  EXPECT_THAT(report, HasSubstr("  its stack when it hung\n    load (loader.cpp:3)\n"));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("hint"))) << "it was ddprun that killed it";
}

TEST_F(FailureReport, SaysWhichValueStoppedTheJob) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(3, ExitStatus::exited(116));
  outcome.cause->message = "rank 3 reported loss = nan at step 120; --on-nan=stop";
  EXPECT_THAT(describe(*outcome.cause), HasSubstr("ended with exit code 116")) << "a worker's own";
  outcome.cause->is_worth_a_retry = false;
  const std::string report = failure_report(outcome, "train");
  EXPECT_THAT(report, HasSubstr("ddprun: train FAILED: rank 3 reported loss = nan at step 120; "
                                "--on-nan=stop\n"));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("its error")));
}

TEST_F(FailureReport, SaysWhatUsersHaveAskedFor) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kStopped;
  outcome.stop_signal = SIGTERM;
  outcome.exit_code = 143;
  EXPECT_EQ(failure_report(outcome, "train"), "ddprun: train STOPPED by SIGTERM\n");
  outcome.sentence = "ddpctl stop (root, pid 18)";
  outcome.restarts_asked_for = 1;
  outcome.requests = {"ddpctl restart (root, pid 17)"};
  outcome.last_round = Round{1};
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train STOPPED by ddpctl stop (root, pid 18)\n"
            "  asked for   ddpctl restart (root, pid 17)\n"
            "  restarts    1 by request, this was round 1\n");
  outcome.restarts = 2;
  outcome.in_place = 1;
  EXPECT_THAT(failure_report(outcome, "train"),
              HasSubstr("  restarts    2 (1 in place) and 1 by request, this was round 1\n"));
}

TEST_F(FailureReport, AWorkerThatAUserReplacedWasNotKilledByTheKernel) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(1, ExitStatus::killed(SIGKILL, false));
  outcome.cause->asked_by = "ddpctl replace (root, pid 17)";
  const std::string report = failure_report(outcome, "train");
  EXPECT_THAT(report, HasSubstr("rank 1 (pid 4701) was ended by ddpctl replace (root, pid 17)\n"));
  EXPECT_THAT(report, ::testing::Not(HasSubstr("hint")));
}

TEST_F(FailureReport, NamesTheRanksThatHadLeftBefore) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(1, ExitStatus::exited(1));
  outcome.done = {0};
  EXPECT_THAT(failure_report(outcome, "train"),
              HasSubstr("  before it   rank 0 had ended with exit code 0; a collective call that "
                        "waits for it fails\n"));
  outcome.done = {0, 2};
  EXPECT_THAT(failure_report(outcome, "train"),
              HasSubstr("  before it   ranks 0 and 2 had ended with exit code 0; a collective call "
                        "that waits for one of them fails\n"));
}

TEST_F(FailureReport, SaysWhichPythonHasNotFoundAModule) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(0, ExitStatus::exited(1));
  outcome.cause->stderr_tail = {"ModuleNotFoundError: No module named 'torch'"};
  EXPECT_THAT(failure_report(outcome, "train.py", "/usr/bin/python3"),
              HasSubstr("  python      /usr/bin/python3; to use another one, activate its "
                        "environment or set PYTHON_EXEC to its path\n"));
  EXPECT_THAT(failure_report(outcome, "train.py"), ::testing::Not(HasSubstr("  python")));
  outcome.cause->stderr_tail = {"ValueError: x"};
  EXPECT_THAT(failure_report(outcome, "train.py", "/usr/bin/python3"),
              ::testing::Not(HasSubstr("  python")));
}

TEST(Summary, CountsChangesOfNodesApartFromRestarts) {
  using namespace std::chrono_literals;
  const Downtime cost{12ms, 0ms, 0ms, 0ms, {}, DowntimeEnd::kWorkersRun};
  const std::string until =
      ", counted until the workers had been started again, because the program reports no training "
      "steps\n";
  rdzv::JobOutcome outcome;
  outcome.last_round = Round{1};
  EXPECT_EQ(summary(outcome, "train", 9s, cost),
            "ddprun: train took 9.0 s, 1 change of nodes cost 12 ms of it" + until);
  outcome.last_round = Round{5};
  outcome.restarts = 3;
  EXPECT_EQ(summary(outcome, "train", 9s, cost),
            "ddprun: train took 9.0 s, 3 restarts and 2 changes of nodes cost 12 ms of it" + until);
  outcome.restarts_asked_for = 1;
  EXPECT_EQ(summary(outcome, "train", 9s, cost),
            "ddprun: train took 9.0 s, 3 restarts, 1 restart by request and 1 change of nodes cost "
            "12 ms of it" +
                until);
}

TEST(Summary, DoesNotSayThatAChangeOfNodesCostNothing) {
  using namespace std::chrono_literals;
  rdzv::JobOutcome outcome;
  outcome.last_round = Round{1};
  EXPECT_EQ(summary(outcome, "train", 9s, no_downtime()),
            "ddprun: train took 9.0 s, 1 change of nodes\n");
}

TEST(Summary, CountsReplacementsApartFromRestarts) {
  using namespace std::chrono_literals;
  const Downtime cost{12ms, 0ms, 0ms, 0ms, {}, DowntimeEnd::kWorkersRun};
  const std::string until =
      " cost 12 ms of it, counted until the workers had been started again, because the program "
      "reports no training steps\n";
  rdzv::JobOutcome outcome;
  outcome.restarts = outcome.in_place = 1;
  EXPECT_EQ(summary(outcome, "train", 9s, cost),
            "ddprun: train took 9.0 s, 1 worker replaced in place" + until);
  outcome.restarts = 4;
  outcome.in_place = 2;
  outcome.last_round = Round{3};
  EXPECT_EQ(
      summary(outcome, "train", 9s, cost),
      "ddprun: train took 9.0 s, 2 workers replaced in place, 2 restarts and 1 change of nodes" +
          until);
}

TEST(RoundChange, SaysWhyThereIsAnotherRoundAndWithWhom) {
  rdzv::RoundStart start;
  EXPECT_EQ(describe_change(start, "node0"), "") << "the first round";
  start.restarts = 1;
  start.max_restarts = 3;
  start.after_failure = failure(1, ExitStatus::killed(SIGKILL));
  EXPECT_EQ(describe_change(start, "node0"),
            "rank 1 (pid 4701) was killed by SIGKILL (signal 9); restart 1 of 3");
  EXPECT_EQ(describe_change(start, "node7"),
            "rank 1 (pid 4701 on node0) was killed by SIGKILL (signal 9); restart 1 of 3");

  start.after_failure.reset();
  start.after_request = true;
  EXPECT_EQ(describe_change(start, "node0"), "a restart was asked for");
  start.asked_by = "ddpctl restart (root, pid 17)";
  EXPECT_EQ(describe_change(start, "node0"),
            "a restart was asked for: ddpctl restart (root, pid 17)");
  start.after_request = false;
  start.after_loss = rdzv::NodeGone{rdzv::NodeGone::How::kDisconnected, 3, "b12"};
  start.nodes_gone = 1;
  start.node_count = 3;
  start.world_size = 6;
  EXPECT_EQ(describe_change(start, "node0"),
            "node 3 (b12) is gone; going on with 3 nodes, 6 workers");
  start.after_loss->how = rdzv::NodeGone::How::kLeft;
  start.nodes_gone = 2;
  start.nodes_joined = 1;
  start.node_count = start.world_size = 1;
  EXPECT_EQ(describe_change(start, "node0"),
            "node 3 (b12) is gone; 2 nodes are gone in all; 1 node joined; going on with 1 node, "
            "1 worker");
}

TEST_F(FailureReport, SaysWhichNodeIsMissingAndWhatToCheck) {
  using How = rdzv::NodeGone::How;
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kCannotRun;
  outcome.exit_code = 112;
  outcome.last_round = Round{2};
  outcome.lost_node = rdzv::NodeGone{How::kSilent, 3, "b12"};
  outcome.sentence =
      "1 of 2:4 nodes are left, and no other came within 600 s; " + describe(*outcome.lost_node);
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train CANNOT GO ON: 1 of 2:4 nodes are left, and no other came within 600 s; "
            "node 3 (b12) was lost: nothing was heard of it for too long\n"
            "  check       whether b12 hangs or is cut off; "
            "--rdzv-conf=keep_alive_interval=SECONDS gives it longer\n"
            "  restarts    none; this was round 2\n");
  const auto check = [&outcome](How how) {
    outcome.lost_node->how = how;
    const std::string report = failure_report(outcome, "train");
    const auto begin = report.find("  check       ") + 14;
    return report.substr(begin, report.find('\n', begin) - begin);
  };
  EXPECT_EQ(check(How::kDisconnected),
            "whether b12 is up, and what killed ddprun there (dmesg shows if memory ran out)");
  EXPECT_EQ(check(How::kLeft),
            "who stopped ddprun on b12; --nnodes=MIN:MAX goes on with fewer nodes");
  EXPECT_EQ(check(How::kUnresponsive),
            "what ddprun on b12 waits for (ps, /proc/PID/stack); it sends heartbeats");
  EXPECT_EQ(check(How::kStuck), "the report of b12; its worker hangs in the kernel");
  outcome.lost_node.reset();
  EXPECT_NE(failure_report(outcome, "train").find("the logs of the nodes that are missing"),
            std::string::npos);
}

TEST_F(FailureReport, SaysWhatToCheckWhenNodesDoNotMeetOrTheLeaderIsGone) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kCannotRun;
  outcome.exit_code = 110;
  outcome.sentence = "1 of 2 nodes came within 600 s; start the others";
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train CANNOT RUN: 1 of 2 nodes came within 600 s; start the others\n");
  outcome.exit_code = 111;
  outcome.sentence = "the leader at node0:29400 is lost";
  outcome.lost_node = rdzv::NodeGone{rdzv::NodeGone::How::kLeft, 1, "b1"};
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train CANNOT GO ON: the leader at node0:29400 is lost\n"
            "  lost        node 1 (b1) left\n"
            "  check       the log of the node that led, and the network to it; this node's "
            "workers were stopped\n");
}

TEST_F(FailureReport, TellsTheNodesOfAJobOnSeveralApart) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.exit_code = 1;
  outcome.cause = failure(5, ExitStatus::exited(1));
  outcome.cause->local_rank = 1;
  outcome.cause->node_rank = 2;
  outcome.consequences = {failure(4, ExitStatus::exited(9)), failure(1, ExitStatus::exited(7))};
  outcome.consequences[1].host = "node1";
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train FAILED: rank 5 (pid 4705) ended with exit code 1\n"
            "  rank        5 (local rank 1 of node 2)\n"
            "  host        node0, pid 4705\n"
            "  time        2025-10-09 08:53:20.042\n"
            "  after it\n"
            "    rank 4 (pid 4704) ended with exit code 9\n"
            "    rank 1 (pid 4701 on node1) ended with exit code 7\n");
}

TEST_F(FailureReport, DescribesAFailureInOneLine) {
  EXPECT_EQ(describe(failure(1, ExitStatus::killed(SIGKILL))),
            "rank 1 (pid 4701) was killed by SIGKILL (signal 9)");
  EXPECT_EQ(describe(failure(0, ExitStatus::exited(3))),
            "rank 0 (pid 4700) ended with exit code 3");
  auto not_started = failure(2, ExitStatus::exited(127));
  not_started.pid = 0;
  not_started.message = "cannot start ./train: No such file or directory";
  EXPECT_EQ(describe(not_started),
            "rank 2 could not be started: cannot start ./train: No such file or directory");
}

TEST_F(FailureReport, TellsHowFarTheWorkerHadCome) {
  using namespace std::chrono_literals;
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.exit_code = 1;
  const auto line_for = [&](const WorkerProgress& progress) {
    outcome.cause = failure(1, ExitStatus::exited(1));
    outcome.cause->progress = progress;
    const std::string report = failure_report(outcome, "train.py");
    const auto begin = report.find("  progress    ");
    if (begin == std::string::npos) return report;
    return report.substr(begin + 14, report.find('\n', begin) - begin - 14);
  };
  WorkerProgress progress;
  EXPECT_EQ(line_for(progress), "no step yet");
  progress.phase = WorkerPhase::kJoining;
  progress.since_phase = 61s;
  EXPECT_EQ(line_for(progress), "joining for 1 min 01 s");
  progress.step = 412;
  progress.since_step = 35s;
  progress.phase = WorkerPhase::kRunning;
  EXPECT_EQ(line_for(progress), "step 412, 35.0 s before");
  progress.total_steps = 1000;
  progress.phase = WorkerPhase::kCollective;
  progress.since_phase = 34'900ms;
  EXPECT_EQ(line_for(progress), "step 412 of 1000, 35.0 s before; collective for 34.9 s");
  outcome.cause->progress.reset();
  EXPECT_EQ(failure_report(outcome, "train.py").find("progress"), std::string::npos);
}

TEST_F(FailureReport, NamesTheFirstCauseAndPutsTheOthersUnderIt) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.exit_code = 1;
  outcome.restarts = 2;
  outcome.last_round = Round{2};
  outcome.cause = failure(1, ExitStatus::exited(1));
  outcome.cause->message = "ValueError: lr must be positive";
  outcome.cause->error_file = "/logs/1/error.json";
  outcome.cause->stderr_tail = {"loading data", "ValueError: lr must be positive"};
  outcome.cause->log_dir = "/logs/1";
  outcome.consequences = {failure(3, ExitStatus::killed(SIGKILL)),
                          failure(2, ExitStatus::exited(9)),
                          failure(0, ExitStatus::killed(SIGTERM))};
  for (auto& consequence : outcome.consequences) consequence.was_told_to_stop = true;
  EXPECT_EQ(failure_report(outcome, "train.py"),
            "ddprun: train.py FAILED: rank 1 (pid 4701) ended with exit code 1\n"
            "  rank        1 (local rank 1)\n"
            "  host        node0, pid 4701\n"
            "  time        2025-10-09 08:53:20.042\n"
            "  its error\n"
            "    ValueError: lr must be positive\n"
            "  error file  /logs/1/error.json\n"
            "  its last lines on stderr\n"
            "    | loading data\n"
            "    | ValueError: lr must be positive\n"
            "  logs        /logs/1\n"
            "  after it\n"
            "    rank 2 (pid 4702) ended with exit code 9\n"
            "    stopped by ddprun: ranks 0, 3\n"
            "  restarts    2, this was round 2\n");
}

TEST_F(FailureReport, AKillForWantOfMemoryIsToldAsSuch) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(1, ExitStatus::killed(SIGKILL));
  outcome.cause->killed_for_memory = true;
  outcome.consequences = {failure(0, ExitStatus::killed(SIGKILL))};
  outcome.consequences[0].was_told_to_stop = true;
  outcome.consequences[0].killed_for_memory = true;
  EXPECT_EQ(failure_report(outcome, "train.py"),
            "ddprun: train.py FAILED: rank 1 (pid 4701) was killed by the kernel: out of memory "
            "(SIGKILL)\n"
            "  rank        1 (local rank 1)\n"
            "  host        node0, pid 4701\n"
            "  time        2025-10-09 08:53:20.042\n"
            "  after it\n"
            "    rank 0 (pid 4700) was killed by the kernel: out of memory (SIGKILL)\n");
  // A data loader's worker was killed, and its parent noticed.
  outcome.cause->status = ExitStatus::exited(1);
  EXPECT_NE(failure_report(outcome, "train.py")
                .find("  hint        the kernel killed a process of this job: out of memory\n"),
            std::string::npos);
}

TEST_F(FailureReport, AnUnexplainedSigkillGetsAHint) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(0, ExitStatus::killed(SIGKILL));
  EXPECT_NE(failure_report(outcome, "train").find("the kernel did: out of memory"),
            std::string::npos);
}

TEST_F(FailureReport, AnAbortByAThreadAtTheEndGetsAHint) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  const auto has_hint = [&outcome](ExitStatus status, const std::string& line) {
    outcome.cause = failure(0, status);
    outcome.cause->stderr_tail = {line, "Fatal Python error: Aborted"};
    return failure_report(outcome, "train").find("destroy_process_group()") != std::string::npos;
  };
  const std::string said = "terminate called without an active exception";
  EXPECT_TRUE(has_hint(ExitStatus::killed(SIGABRT), said));
  EXPECT_FALSE(
      has_hint(ExitStatus::killed(SIGABRT), "terminate called after throwing an instance"));
  EXPECT_FALSE(has_hint(ExitStatus::exited(1), said));
}

TEST_F(FailureReport, AScriptThatRequiresLocalRankGetsAHint) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  const auto has_hint = [&outcome](int code, const std::string& line) {
    outcome.cause = failure(0, ExitStatus::exited(code));
    outcome.cause->stderr_tail = {"usage: train.py [-h] --local-rank N", line};
    return failure_report(outcome, "train").find("give it --local-rank='${local_rank}'") !=
           std::string::npos;
  };
  EXPECT_TRUE(has_hint(2, "train.py: error: the following arguments are required: --local_rank"));
  EXPECT_TRUE(has_hint(2, "t.py: error: the following arguments are required: data, --local-rank"));
  EXPECT_TRUE(has_hint(2, "Error: Missing option '--local-rank'."));
  EXPECT_FALSE(has_hint(1, "train.py: error: the following arguments are required: --local_rank"));
  EXPECT_FALSE(has_hint(2, "train.py: error: the following arguments are required: --data"));
  EXPECT_FALSE(has_hint(2, "train.py: error: unrecognized arguments: --local-rank=0"));
}

TEST_F(FailureReport, AStoppedJobSaysBySignalOfWhat) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kStopped;
  outcome.stop_signal = SIGINT;
  outcome.consequences = {failure(0, ExitStatus::killed(SIGINT)),
                          failure(1, ExitStatus::exited(4))};
  for (auto& consequence : outcome.consequences) consequence.was_told_to_stop = true;
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train STOPPED by SIGINT\n"
            "  workers\n"
            "    rank 1 (pid 4701) ended with exit code 4\n"
            "    stopped by ddprun: rank 0\n");
}

TEST_F(FailureReport, APreemptedJobSaysByWhatSignalOrNotice) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kStopped;
  outcome.exit_code = 113;
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train PREEMPTED by a notice that a node is taken back\n");
  outcome.sentence = "a notice: instance i-0abc is stopped";
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train PREEMPTED by a notice: instance i-0abc is stopped\n");
  outcome.stop_signal = SIGUSR1;
  outcome.sentence = "ddpctl stop (root, pid 4711)";  // afterwards
  EXPECT_EQ(failure_report(outcome, "train"), "ddprun: train PREEMPTED by SIGUSR1\n");
}

TEST_F(FailureReport, SaysHowManyConsequencesOfALargeJobAreLeftOut) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kStopped;
  outcome.stop_signal = SIGINT;
  outcome.consequences = {failure(1, ExitStatus::exited(4))};
  outcome.consequences_left_out = 28;
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train STOPPED by SIGINT\n"
            "  workers\n"
            "    rank 1 (pid 4701) ended with exit code 4\n"
            "    and 28 more\n");
}

TEST_F(FailureReport, AJobThatCannotRunSaysWhy) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kCannotRun;
  outcome.sentence = "cannot open the round's store: bind 127.0.0.1:29500: Address already in use";
  EXPECT_EQ(failure_report(outcome, "train"),
            "ddprun: train CANNOT RUN: cannot open the round's store: bind 127.0.0.1:29500: "
            "Address already in use\n");
}

TEST_F(FailureReport, NothingThatOthersSayMovesTheCursorOrForgesALine) {
  const std::string evil = "x\x1b[2J\nddprun: all is well\n";
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.exit_code = 1;
  outcome.cause = failure(1, ExitStatus::exited(1));
  outcome.cause->host = evil;
  outcome.cause->message = evil + "\x1b[31mValueError\x1b[0m\n";
  outcome.cause->stderr_tail = {evil, "", "\ttab\u009b"};
  outcome.cause->log_dir = outcome.cause->error_file = evil;
  outcome.consequences = {failure(2, ExitStatus::exited(2))};
  outcome.consequences.back().host = "y" + evil;
  const std::string line = R"(x\x1b[2J\nddprun: all is well\n)";
  EXPECT_EQ(failure_report(outcome, evil), "ddprun: " + line +
                                               " FAILED: rank 1 (pid 4701) ended with exit code 1\n"
                                               "  rank        1 (local rank 1)\n"
                                               "  host        " +
                                               line +
                                               ", pid 4701\n"
                                               "  time        2025-10-09 08:53:20.042\n"
                                               "  its error\n"
                                               "    x\\x1b[2J\n"
                                               "    ddprun: all is well\n"
                                               "    ValueError\n"
                                               "  error file  " +
                                               line +
                                               "\n"
                                               "  its last lines on stderr\n"
                                               "    | x\\x1b[2J\n"
                                               "    | ddprun: all is well\n"
                                               "    | \n"
                                               "    | \ttab\\u009b\n"
                                               "  logs        " +
                                               line +
                                               "\n"
                                               "  after it\n"
                                               "    rank 2 (pid 4702 on y" +
                                               line + ") ended with exit code 2\n");
  EXPECT_EQ(summary({}, evil, std::chrono::seconds(9), no_downtime()),
            "ddprun: " + line + " took 9.0 s, without a restart\n");
  rdzv::RoundStart start;
  start.after_loss = rdzv::NodeGone{rdzv::NodeGone::How::kLeft, 2, evil};
  EXPECT_EQ(describe_change(start, "").find('\n'), std::string::npos);
}

TEST_F(FailureReport, SaysWhyAPoisonStepIsNotTriedAgain) {
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kFailed;
  outcome.cause = failure(1, ExitStatus::killed(SIGKILL));
  outcome.sentence = "step 13 has ended rank 1 twice";
  outcome.restarts = outcome.in_place = 1;
  const std::string report = failure_report(outcome, "train");
  EXPECT_NE(report.find("\n  no retry    step 13 has ended rank 1 twice\n"), std::string::npos)
      << report;
  EXPECT_NE(report.find("1 (1 in place), this was round 0\n"), std::string::npos) << report;
}

TEST_F(FailureReport, ASuccessSaysNothing) {
  EXPECT_EQ(failure_report(rdzv::JobOutcome{}, "train"), "");
}

TEST(Summary, CountsWhatIsFarTooMuchWithoutOverflow) {
  rdzv::JobOutcome outcome;
  outcome.restarts = std::numeric_limits<int>::max();
  outcome.restarts_asked_for = 1 << 30;
  outcome.last_round = Round{0x80000000};
  EXPECT_EQ(summary(outcome, "train", std::chrono::seconds(1), {}).find("of nodes"),
            std::string::npos);
  outcome.restarts = outcome.restarts_asked_for = 0;
  EXPECT_NE(
      summary(outcome, "train", std::chrono::seconds(1), {}).find("2147483647 changes of nodes"),
      std::string::npos);
}

}  // namespace
}  // namespace ddprun::agent
