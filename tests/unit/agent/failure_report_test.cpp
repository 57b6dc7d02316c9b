#include "agent/failure_report.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <csignal>

namespace ddprun::agent {
namespace {

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
  EXPECT_EQ(summary(outcome, "train.py", 999ms, 0s),
            "ddprun: train.py took 999 ms, without a restart\n");
  outcome.restarts = 1;
  EXPECT_EQ(summary(outcome, "train.py", 59'999ms, 12ms),
            "ddprun: train.py took 59.9 s, 1 restart cost 12 ms of it\n");
  outcome.restarts = 3;
  EXPECT_EQ(summary(outcome, "train.py", 25h + 2min + 3s, 61s),
            "ddprun: train.py took 25 h 02 min 03 s, 3 restarts cost 1 min 01 s of it\n");
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
            "    stopped by ddprun: rank 0, 3\n"
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
  EXPECT_EQ(
      failure_report(outcome, "train.py"),
      "ddprun: train.py FAILED: rank 1 (pid 4701) was killed by the kernel for want of memory "
      "(SIGKILL)\n"
      "  rank        1 (local rank 1)\n"
      "  host        node0, pid 4701\n"
      "  time        2025-10-09 08:53:20.042\n"
      "  after it\n"
      "    rank 0 (pid 4700) was killed by the kernel for want of memory (SIGKILL)\n");
  // A data loader's worker was killed, and its parent noticed.
  outcome.cause->status = ExitStatus::exited(1);
  EXPECT_NE(failure_report(outcome, "train.py")
                .find("  hint        the kernel killed a process of this job for want of memory\n"),
            std::string::npos);
}

TEST_F(FailureReport, AnUnexplainedSigkillGetsAHint) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.cause = failure(0, ExitStatus::killed(SIGKILL));
  EXPECT_NE(failure_report(outcome, "train").find("for want of memory"), std::string::npos);
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

TEST_F(FailureReport, ASuccessSaysNothing) {
  EXPECT_EQ(failure_report(rdzv::JobOutcome{}, "train"), "");
}

}  // namespace
}  // namespace ddprun::agent
