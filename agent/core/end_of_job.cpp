#include "agent/core/end_of_job.h"

#include <algorithm>
#include <utility>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kFollowers = 2s;  // clients may read slowly, and files may not answer
constexpr milliseconds kProgress = 2s;
constexpr milliseconds kReport = 2500ms;       // its copies may be on a file server
constexpr milliseconds kEvents = 5s;           // a reader of events may have stopped reading
constexpr milliseconds kEventsOfStopped = 2s;  // the command of --on-event may talk to a pager
constexpr milliseconds kNoHurry = 24h;
constexpr milliseconds kHurriedStep = 500ms;

// How long to wait until the workers' output and the report are written.
milliseconds patience_of(rdzv::JobOutcome::Kind kind) {
  // A user who stops a job does not want to wait for a slow reader.
  if (kind == rdzv::JobOutcome::Kind::kStopped) return kHurriedStep;
  // A worker that hangs in the kernel never closes its pipe.
  return kind == rdzv::JobOutcome::Kind::kCannotRun ? 5s : kNoHurry;
}

}  // namespace

EndOfJob::Then EndOfJob::take(EndStep step) {
  step_ = step;
  return Then::kTakeStep;
}

EndOfJob::Then EndOfJob::taken() {
  if (step_ == EndStep::kConsole) return Then::kExit;
  if (step_ == EndStep::kLeader && haste_ != Haste::kNone) return take(EndStep::kOutput);
  return take(static_cast<EndStep>(static_cast<int>(step_) + 1));
}

EndOfJob::Then EndOfJob::signalled() {
  const Haste before = haste_;
  haste_ = step_ < EndStep::kOutput ? Haste::kSignalled : Haste::kHurried;
  if (step_ < EndStep::kLeader) return take(EndStep::kLeader);
  if (step_ == EndStep::kLeader && before == Haste::kNone) return Then::kWait;
  if (step_ < EndStep::kOutput) return take(EndStep::kOutput);
  if (step_ == EndStep::kOutput) return taken();
  return before == Haste::kHurried ? Then::kWait : Then::kShorten;
}

milliseconds EndOfJob::limit() const {
  if (haste_ == Haste::kHurried) return kHurriedStep;
  const milliseconds patience = patience_of(kind_);
  switch (step_) {
    case EndStep::kLogs:
    case EndStep::kFollowers:
      return kFollowers;
    case EndStep::kLeader:  // one here; for one elsewhere LeaderPort has a shorter limit
      return leader_limit_;
    case EndStep::kProgress:
      return kProgress;
    case EndStep::kReport:
      return kReport;
    case EndStep::kEvents:
      return kind_ == rdzv::JobOutcome::Kind::kStopped ? kEventsOfStopped : kEvents;
    case EndStep::kOutput:
    case EndStep::kConsole:
      break;
  }
  return patience;
}

}  // namespace ddprun::agent
