// The end of a job, on a loop that is slower than its time limits. What is wrong here is seen by
// the address sanitizer.
#include "agent/supervisor/ending.h"

#include <gmock/gmock.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

// As when ddprun was stopped (SIGSTOP) meanwhile: the wait for the output is over with the first
// handler that runs, and the limit of that wait is ready behind it.
TEST(EndingTest, TheLimitOfAWaitMayComeWhenTheWaitIsOver) {
  boost::asio::io_context loop;
  PipeEnds out;
  PipeEnds err;
  Console console(loop.get_executor(), {out.write_end(), err.write_end()});
  Job job;
  Output output(loop.get_executor(), console, job.output, "job", "");
  EventLog events(loop.get_executor(), console, job, "host");
  boost::asio::signal_set signals(loop, SIGUSR2);
  ASSERT_TRUE(output.open(0, {0, 0, "default"}));  // and it is not at its end
  boost::asio::post(loop, [] { std::this_thread::sleep_for(600ms); });
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kStopped;
  outcome.stop_signal = SIGTERM;
  outcome.exit_code = 128 + SIGTERM;
  Ending({loop, console, output, events, signals}, job).run(outcome, "", /*wants_summary=*/false);
  EXPECT_TRUE(console.flush(std::chrono::steady_clock::now() + 10s));
  EXPECT_THAT(err.read_available(), HasSubstr("STOPPED by SIGTERM"));
}

// The wait for the output took all the time of a job that was stopped, and the console is slow.
TEST(EndingTest, TheReportHasTimeOfItsOwn) {
  boost::asio::io_context loop;
  PipeEnds out;
  PipeEnds err;
  err.fill();
  Console console(loop.get_executor(), {out.write_end(), err.write_end()});
  Job job;
  Output output(loop.get_executor(), console, job.output, "job", "");
  EventLog events(loop.get_executor(), console, job, "host");
  boost::asio::signal_set signals(loop, SIGUSR2);
  ASSERT_TRUE(output.open(0, {0, 0, "default"}));  // and it is not at its end
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kStopped;
  outcome.stop_signal = SIGTERM;
  outcome.exit_code = 128 + SIGTERM;
  std::string read;
  std::thread reader([&] {
    std::this_thread::sleep_for(700ms);
    read = err.read_available();
  });
  Ending({loop, console, output, events, signals}, job).run(outcome, "", /*wants_summary=*/false);
  EXPECT_TRUE(console.flush(std::chrono::steady_clock::now())) << "nothing is left to be written";
  reader.join();
  EXPECT_THAT(read + err.read_available(), HasSubstr("STOPPED by SIGTERM"));
}

}  // namespace
}  // namespace ddprun::agent
