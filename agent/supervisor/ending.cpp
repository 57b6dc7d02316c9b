#include "agent/supervisor/ending.h"

#include <algorithm>

#include "agent/failure/failure_copies.h"
#include "agent/failure/failure_report.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlushSlice = 100ms;
constexpr std::chrono::milliseconds kNoHurry = 24h;
constexpr std::chrono::milliseconds kHurry = 500ms;
constexpr std::chrono::milliseconds kStuckPatience = 5s;
constexpr std::chrono::milliseconds kEventPatience = 5s;  // with a reader that does not read
constexpr auto kNoDeadline = std::chrono::steady_clock::time_point::max();

std::chrono::milliseconds patience_with(rdzv::JobOutcome::Kind kind) {
  using Kind = rdzv::JobOutcome::Kind;
  switch (kind) {
    case Kind::kStopped:  // who stops a job does not want to wait for a reader that may never come
      return kHurry;
    case Kind::kCannotRun:  // a worker that hangs in the kernel never closes its end
      return kStuckPatience;
    case Kind::kSucceeded:
    case Kind::kFailed:
      break;
  }
  return kNoHurry;
}

}  // namespace

void Ending::run(const rdzv::JobOutcome& outcome, const std::string& remarks, bool wants_summary) {
  deliver_output(patience_with(outcome.kind));
  report(outcome, remarks, wants_summary);
}

// What workers wrote is not thrown away because its reader is slow; one more signal ends the wait.
void Ending::deliver_output(std::chrono::milliseconds patience) {
  parts_.stop_signals.cancel();
  parts_.stop_signals.async_wait([wait = wait_](const boost::system::error_code& ec, int) {
    if (ec) return;
    wait->is_cut_short = true;
    wait->deadline = std::chrono::steady_clock::now();
  });
  wait_->deadline = std::chrono::steady_clock::now() + patience;
  parts_.output.when_delivered(patience, [wait = wait_] { wait->is_delivered = true; });
  while (!wait_->is_delivered && std::chrono::steady_clock::now() < wait_->deadline) {
    parts_.io.run_one();
  }
  if (const std::string folder = parts_.output.unanswering_folder(); !folder.empty()) {
    parts_.console.notify("the log folder " + folder +
                          " did not answer in time; what was not written there yet may be lost");
  }
}

void Ending::report(const rdzv::JobOutcome& outcome, const std::string& remarks,
                    bool wants_summary) {
  const auto now = std::chrono::steady_clock::now();
  // What was waited for so far, a log folder that does not answer, may have taken all the time.
  if (!wait_->is_cut_short) wait_->deadline = std::max(wait_->deadline, now + kHurry);
  std::string text = failure_report(outcome, job_.program.name);
  if (!text.empty()) {
    text += remarks;
    const std::size_t headline = text.find('\n');
    const bool has_colour = parts_.console.is_coloured(Stream::kStderr);
    parts_.console.say(
        Stream::kStderr,
        coloured(text.substr(0, headline), Colour::kRed, has_colour) + text.substr(headline));
    if (!copy_failure(job_.environment, text, outcome, kFailureCopyLimit)) {
      parts_.console.notify("the copies of this report could not be written in time");
    }
  }
  if (wants_summary || number(outcome.last_round) > 0) {
    const JobTimes& times = parts_.events.times();
    parts_.console.say(Stream::kStderr,
                       summary(outcome, job_.program.name, times.wall(now), times.lost()));
  }
  const auto flush_events = [this](TimePoint until) { return parts_.events.flush(until); };
  if (!wait_in_slices(flush_events, now + kEventPatience)) {
    parts_.console.notify("the last events could not be written in time");
  }
  const auto flush_console = [this](TimePoint until) { return parts_.console.flush(until); };
  // Twice: that one of the two streams cannot be written is said on the other.
  wait_in_slices(flush_console, kNoDeadline);
  wait_in_slices(flush_console, kNoDeadline);
}

// Waits for `flush` until then, or until the deadline of all, in slices, so that a signal is seen
// between them.
bool Ending::wait_in_slices(const std::function<bool(TimePoint)>& flush, TimePoint until) {
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    const auto deadline = std::min(until, wait_->deadline);
    const bool is_flushed = flush(std::min(now + kFlushSlice, deadline));
    parts_.io.poll();  // also for what a write that failed leaves to be said
    if (is_flushed || now >= deadline) return is_flushed;
  }
}

}  // namespace ddprun::agent
