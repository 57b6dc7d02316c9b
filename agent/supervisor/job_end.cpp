#include "agent/supervisor/job_end.h"

#include <chrono>
#include <utility>

#include "agent/failure/failure_copies.h"
#include "agent/failure/failure_report.h"

namespace ddprun::agent {

JobEnd::JobEnd(const AgentParts& parts, const Others& others, std::function<std::string()> remarks,
               bool wants_summary)
    : parts_(parts),
      others_(others),
      remarks_(std::move(remarks)),
      wants_summary_(wants_summary),
      copies_(parts.io.get_executor(), "ddprun-copies") {}

void JobEnd::take(EndStep step, std::function<void()> done) {
  // Tell the user if something may be lost.
  if (unfinished_ == EndStep::kReport) {
    parts_.console.notify("the copies of this report could not be written in time");
  } else if (unfinished_ == EndStep::kEvents) {
    parts_.console.notify("the last events could not be written in time");
    others_.observers.command.end();
  }
  unfinished_ = step;
  done_ = std::move(done);
  const auto is_done = [this, step] {
    if (unfinished_ != step) return;
    unfinished_.reset();
    std::exchange(done_, nullptr)();
  };
  switch (step) {
    case EndStep::kLogs:
      return others_.queries.has_followers() ? parts_.output.when_delivered(is_done) : is_done();
    case EndStep::kFollowers:
      return others_.queries.finish(is_done);
    case EndStep::kLeader:
      return others_.leader.leave(is_done);
    case EndStep::kProgress:
      return others_.observers.kubeflow.send_last(is_done);
    case EndStep::kOutput:
      others_.observers.over(headline());
      others_.queries.over(headline());
      return parts_.output.when_delivered(is_done);
    case EndStep::kReport:
      return report(is_done);
    case EndStep::kEvents:
      return others_.observers.command.tell_last(
          [this, is_done] { others_.observers.events.when_written(is_done); });
    case EndStep::kConsole:
      return parts_.console.when_written(is_done);
  }
}

// The outcome of the job in one line.
std::string JobEnd::headline() const {
  const std::string& program = parts_.job.program.name;
  const std::string report = failure_report(outcome_, program);
  return report.empty() ? program + " succeeded" : report.substr(0, report.find('\n'));
}

void JobEnd::report(std::function<void()> done) {
  if (const std::string folder = parts_.output.unanswering_folder(); !folder.empty()) {
    parts_.console.notify("the log folder " + folder +
                          " did not answer in time; what was not written there yet may be lost");
  }
  const std::string& program = parts_.job.program.name;
  const bool is_of_here = outcome_.cause && outcome_.cause->host == parts_.host;
  const agent::Program& run = parts_.job.program;
  std::string text = failure_report(outcome_, program, run.is_python && is_of_here ? run.path : "");
  if (!text.empty()) {
    text += remarks_();
    const std::size_t first_line = text.find('\n');
    const bool has_colour = parts_.console.is_coloured(Stream::kStderr);
    parts_.console.say(
        Stream::kStderr,
        coloured(text.substr(0, first_line), Colour::kRed, has_colour) + text.substr(first_line));
  }
  if (wants_summary_ || number(outcome_.last_round) > 0) {
    const DowntimeClock& times = others_.observers.events.times();
    const auto now = std::chrono::steady_clock::now();
    parts_.console.say(Stream::kStderr, summary(outcome_, program, times.wall(now), times.all(now),
                                                times.goodput(now)));
  }
  if (text.empty()) return done();
  copies_.run<bool>(
      [environment = parts_.job.environment, text = std::move(text), outcome = outcome_] {
        write_failure_copies(environment, text, outcome);
        return true;
      },
      [done = std::move(done)](bool) { done(); });
}

}  // namespace ddprun::agent
