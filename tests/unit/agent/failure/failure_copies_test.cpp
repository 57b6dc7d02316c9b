#include "agent/failure/failure_copies.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <csignal>
#include <fstream>
#include <sstream>

#include "tests/support/temporary_tree.h"

namespace ddprun::agent {
namespace {

using Kind = rdzv::JobOutcome::Kind;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

rdzv::JobOutcome failed(ExitStatus status) {
  rdzv::JobOutcome outcome;
  outcome.kind = Kind::kFailed;
  outcome.exit_code = status.as_shell_code();
  outcome.cause.emplace();
  outcome.cause->rank = 1;
  outcome.cause->pid = 4711;
  outcome.cause->status = status;
  outcome.cause->when = std::chrono::system_clock::from_time_t(1'760'000'000);
  return outcome;
}

const auto kNow = std::chrono::system_clock::from_time_t(1'760'000'099);

TEST(TerminationLog, GetsTheReportWhereKubernetesMadeTheFile) {
  const TemporaryTree tree;
  const std::string file = tree.write("termination-log", "of an earlier container, and longer");
  write_termination_log(file, "ddprun: train.py FAILED\n");
  EXPECT_EQ(text_of(file), "ddprun: train.py FAILED\n");
  write_termination_log(tree / "none", "x");
  EXPECT_FALSE(std::filesystem::exists(tree / "none"));
}

TEST(TerminationLog, KeepsTheFirstLinesOfALongReport) {
  std::string report = "ddprun: train.py FAILED\n";
  while (report.size() < 10'000) report += "a line of twenty-two\n";
  const std::string message = termination_message(report);
  EXPECT_LE(message.size(), 4096U);
  EXPECT_GT(message.size(), 4000U);
  EXPECT_EQ(message, report.substr(0, message.size()));
  EXPECT_EQ(message.back(), '\n');
  EXPECT_EQ(termination_message(std::string(5000, 'x')).size(), 4096U);
}

TEST(ErrorFileForParent, IsTheRootCausesWithItsCode) {
  const std::string file =
      R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"7"}}})";
  EXPECT_EQ(
      error_file_for_parent(failed(ExitStatus::exited(3)), file, kNow),
      R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"7"},"errorCode":3}})");
  EXPECT_EQ(
      error_file_for_parent(failed(ExitStatus::killed(SIGABRT)), file, kNow),
      R"({"message":{"message":"ValueError: x","extraInfo":{"timestamp":"7"},"errorCode":-6}})");
}

TEST(ErrorFileForParent, PassesOnWhatHasNoPlaceForTheCode) {
  for (const std::string text : {R"({"message":"plain","timestamp":7})", "not JSON", "[1]"}) {
    EXPECT_EQ(error_file_for_parent(failed(ExitStatus::exited(3)), text, kNow), text);
  }
}

TEST(ErrorFileForParent, IsWrittenForAWorkerThatLeftNone) {
  EXPECT_EQ(error_file_for_parent(failed(ExitStatus::killed(SIGKILL)), "", kNow),
            R"json({"message":{"message":"rank 1 (pid 4711) was killed by SIGKILL (signal 9)",)json"
            R"("extraInfo":{"timestamp":"1760000000"},"errorCode":-9}})");
  rdzv::JobOutcome cannot_run;
  cannot_run.kind = Kind::kCannotRun;
  cannot_run.exit_code = 114;
  cannot_run.sentence = "no port";
  EXPECT_EQ(error_file_for_parent(cannot_run, "", kNow),
            R"({"message":{"message":"no port","extraInfo":{"timestamp":"1760000099"},)"
            R"("errorCode":114}})");
  rdzv::JobOutcome stopped;
  stopped.kind = Kind::kStopped;
  stopped.stop_signal = SIGTERM;
  stopped.exit_code = 143;
  EXPECT_EQ(error_file_for_parent(stopped, "", kNow),
            R"({"message":{"message":"stopped by SIGTERM","extraInfo":{"timestamp":"1760000099"},)"
            R"("errorCode":143}})");
}

TEST(ErrorFileForParent, ItsPlaceIsNotWaitedFor) {
  const TemporaryTree tree;
  ASSERT_EQ(::mkfifo((tree / "fifo").c_str(), 0600), 0);
  write_error_file_for_parent(tree / "fifo", failed(ExitStatus::exited(3)));
  write_termination_log(tree / "fifo", "report");
  write_error_file_for_parent(tree / "file", failed(ExitStatus::exited(3)));
  EXPECT_TRUE(text_of(tree / "file").ends_with(R"("errorCode":3}})"));
}

TEST(FailureCopies, AreMadeBothOnAThreadThatIsWaitedFor) {
  const TemporaryTree tree;
  const Environment environment{{"DDPRUN_TERMINATION_LOG", tree.write("log", "")},
                                {"TORCHELASTIC_ERROR_FILE", tree / "file"}};
  EXPECT_TRUE(
      copy_failure(environment, "report", failed(ExitStatus::exited(3)), std::chrono::seconds(30)));
  EXPECT_EQ(text_of(tree / "log"), "report");
  EXPECT_TRUE(text_of(tree / "file").ends_with(R"("errorCode":3}})"));
}

}  // namespace
}  // namespace ddprun::agent
