// How long a job took and what its restarts cost: the time from the failure (or from whatever ended
// the round) until the workers of the next round run. Pure: the owner passes the times in.
#pragma once

#include <chrono>
#include <optional>

namespace ddprun::agent {

class JobTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Duration = std::chrono::steady_clock::duration;

  explicit JobTimes(TimePoint started) : started_(started) {}

  // Something has ended the round, or will end it: only the first call counts.
  void trouble(TimePoint now) {
    if (!trouble_) trouble_ = now;
  }

  // The workers of a round run. Returns the time since its cause, which is the job's start for the
  // first round.
  Duration round_runs(TimePoint now) {
    const Duration since_cause = now - trouble_.value_or(started_);
    if (has_run_) lost_ += since_cause;
    has_run_ = true;
    trouble_.reset();
    return since_cause;
  }

  Duration lost() const { return lost_; }
  Duration wall(TimePoint now) const { return now - started_; }

 private:
  TimePoint started_;
  std::optional<TimePoint> trouble_;
  Duration lost_{};
  bool has_run_ = false;
};

}  // namespace ddprun::agent
