// The history of the job on this node: the state of each worker of the current round, the restarts
// with reasons and lost time, and the latest events, which become lines only in fill(). Pure and
// bounded: the totals count everything, the lists keep the latest. Owned by the EventLog.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "agent/events/event_lines.h"
#include "agent/status/node_status.h"

namespace ddprun::agent {

// How long a job took and what its restarts cost: the time from the failure (or from whatever ended
// the round) until the workers of the next round run. Pure: the owner passes the times in.
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

class JobHistory {
 public:
  explicit JobHistory(int local_world_size);

  void note(const EventHead& head, const JobEvent& event);

  // Fills in the parts of the status that are kept here: the round, the workers without their
  // current progress, the restarts, and at most `events_max` events.
  void fill(NodeStatus& status, std::chrono::steady_clock::time_point now,
            std::size_t events_max) const;

 private:
  void on(const EventHead& head, const RoundStarted& started);
  void on(const EventHead& head, const WorkerExited& exited);
  void on(const EventHead& head, const Restarted& restarted);
  void on(const EventHead& head, const JobStarted& started);
  void on(const EventHead&, const auto&) {}  // kept in events_ only

  int local_world_size_;
  int max_restarts_ = 0;
  int restarts_ = 0;
  std::optional<RoundStarted> round_;  // the latest
  std::chrono::steady_clock::time_point round_since_{};
  std::chrono::microseconds until_run_{};
  std::vector<WorkerStatus> workers_;
  std::array<RestartTotal, 6> totals_;  // by reason
  std::deque<RestartRecord> records_;
  std::deque<std::pair<EventHead, JobEvent>> events_;
};

}  // namespace ddprun::agent
