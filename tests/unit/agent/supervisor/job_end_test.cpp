// The steps of a job's end, with readers that do not read.
#include "agent/supervisor/job_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>

#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class JobEndTest : public ::testing::Test {
 protected:
  JobEndTest() {
    job_.run_id = "job";
    job_.program.name = "train";
    outcome_.kind = rdzv::JobOutcome::Kind::kStopped;
    outcome_.stop_signal = SIGTERM;
    outcome_.exit_code = 128 + SIGTERM;
  }

  // With whatever a test has put into the job.
  void begin() {
    const AgentParts parts{loop_, console_, log_, output_, job_, "here", "agent"};
    observers_.emplace(parts, [] { return NodeSnapshot{}; });
    ASSERT_TRUE(observers_->events.open());
    queries_.emplace(
        parts,
        QueryPort::Access{
            .job = {.node_status = [](std::size_t) { return NodeStatus{}; },
                    .on_event = [](const auto&) { return std::shared_ptr<void>(); },
                    .leader = [] { return nullptr; }},
            .first_rank = [] { return 0; },
            .requests = {.stacks = [](const auto&, auto) {},
                         .stop = [](const std::string&) { return Result<void>(); },
                         .restart = [](const std::string&) { return Result<Round>(Round{0}); },
                         .replace = [](int, const std::string&) { return std::nullopt; },
                         .drain = [](const rdzv::DrainAsked&) { return Result<void>(); }}});
    leader_.emplace(loop_, job_, "here", log_, queries_->query(), store_, [](const NodeEvent&) {});
    end_.emplace(
        parts, JobEnd::Others{*observers_, *queries_, *leader_}, [] { return "a remark\n"; },
        /*wants_summary=*/false);
    end_->begin(outcome_);
  }
  // Whether the step is taken within this time.
  bool take(EndStep step, std::chrono::milliseconds limit = 10s) {
    auto taken = std::make_shared<bool>(false);
    end_->take(step, [taken] { *taken = true; });
    const auto until = std::chrono::steady_clock::now() + limit;
    loop_.restart();
    while (!*taken && loop_.run_one_until(until) > 0) {
    }
    return *taken;
  }

  boost::asio::io_context loop_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      loop_.get_executor()};
  PipeEnds out_;
  PipeEnds err_;
  Console console_{loop_.get_executor(), {out_.write_end(), err_.write_end()}};
  const Log log_{console_, {{"DDPRUN_LOG_LEVEL", "critical"}}};
  Job job_;
  rdzv::JobOutcome outcome_;
  Output output_{loop_.get_executor(), console_, job_.output, "job", ""};
  std::optional<Observers> observers_;
  std::optional<QueryPort> queries_;
  RoundStore store_{loop_, job_, [](std::string_view) {}};
  std::optional<LeaderPort> leader_;
  std::optional<JobEnd> end_;
};

TEST_F(JobEndTest, TakesAllStepsWhereNobodyHoldsThemUp) {
  begin();
  for (int step = 0; step <= static_cast<int>(EndStep::kConsole); ++step) {
    EXPECT_TRUE(take(static_cast<EndStep>(step))) << step;
  }
  EXPECT_THAT(err_.read_available(), StartsWith("ddprun: train STOPPED by SIGTERM\na remark\n"));
}

TEST_F(JobEndTest, AJobThatSucceedsHasNoReport) {
  outcome_ = {};
  begin();
  EXPECT_TRUE(take(EndStep::kReport));
  EXPECT_TRUE(take(EndStep::kConsole));
  EXPECT_THAT(err_.read_available(), IsEmpty());
}

TEST_F(JobEndTest, OutputThatIsNotAtItsEndIsAwaitedAndTheReportHasNotWaitedForIt) {
  begin();
  ASSERT_TRUE(output_.open(0, {0, 0, "default"}));
  EXPECT_FALSE(take(EndStep::kOutput, 50ms));
  EXPECT_TRUE(take(EndStep::kReport));
  EXPECT_TRUE(take(EndStep::kConsole));
  EXPECT_THAT(err_.read_available(), HasSubstr("STOPPED by SIGTERM"));
}

// The agent was stopped (SIGSTOP) meanwhile: a step ends after the core has begun the next one.
TEST_F(JobEndTest, AStepThatIsTakenTooLateIsNotTakenForTheNextOne) {
  begin();
  ASSERT_TRUE(output_.open(0, {0, 0, "default"}));
  int outputs = 0;
  end_->take(EndStep::kOutput, [&] { ++outputs; });
  int reports = 0;
  end_->take(EndStep::kReport, [&] { ++reports; });
  output_.started(0);
  output_.ended(0);
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (reports == 0 && loop_.run_one_until(until) > 0) {
  }
  loop_.poll();
  EXPECT_EQ(outputs, 0);
  EXPECT_EQ(reports, 1);
}

TEST_F(JobEndTest, TheLastStepIsTakenWhenTheConsoleIsReadAndNotBefore) {
  err_.fill();
  begin();
  EXPECT_TRUE(take(EndStep::kReport));
  EXPECT_FALSE(take(EndStep::kConsole, 50ms));
  const std::string read = err_.read_available();
  EXPECT_TRUE(take(EndStep::kConsole));
  EXPECT_THAT(read + err_.read_available(), HasSubstr("STOPPED by SIGTERM"));
}

TEST_F(JobEndTest, ThatAStreamCannotBeWrittenIsSaidOnTheOtherBeforeTheEnd) {
  out_.close_read();
  begin();
  console_.say(Stream::kStdout, "lost\n");
  EXPECT_TRUE(take(EndStep::kConsole));
  EXPECT_THAT(err_.read_available(), HasSubstr("cannot write to stdout"));
}

TEST_F(JobEndTest, EventsThatNobodyReadsAreGivenUpAndThatIsSaid) {
  PipeEnds pipe;
  pipe.fill();
  job_.events.descriptor = pipe.write_end();
  begin();
  observers_->events.finished(outcome_, outcome_.exit_code);
  EXPECT_FALSE(take(EndStep::kEvents, 50ms));
  EXPECT_TRUE(take(EndStep::kConsole));
  EXPECT_THAT(err_.read_available(), HasSubstr("the last events could not be written in time"));
}

}  // namespace
}  // namespace ddprun::agent
