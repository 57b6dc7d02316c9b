// The history of the job on this node: the state of each worker of the current round, the restarts
// with reasons and downtime, and the latest events, which become lines only in fill(). Pure and
// bounded: the totals count everything, the lists keep the latest. Owned by the EventLog.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "agent/events/downtime_clock.h"
#include "agent/events/event_lines.h"
#include "agent/status/node_status.h"

namespace ddprun::agent {

class JobHistory {
 public:
  explicit JobHistory(int local_world_size);

  void note(const EventHead& head, const JobEvent& event);

  // Fills in the parts of the status that are kept here: the round, the workers without their
  // current progress, the restarts, and at most `events_max` events. The times are the clock's.
  void fill(NodeStatus& status, const DowntimeClock& times,
            std::chrono::steady_clock::time_point now, std::size_t events_max) const;

 private:
  void on(const EventHead& head, const RoundStarted& started);
  void on(const EventHead& head, const WorkerExited& exited);
  void on(const EventHead& head, const Restarted& restarted);
  void on(const EventHead& head, const JobStarted& started);
  void on(const EventHead&, const auto&) {}  // kept in events_ only

  void take_place(const RoundStarted::Worker& newcomer);

  RestartTotal& total_of(RestartReason reason) { return totals_[static_cast<std::size_t>(reason)]; }

  int local_world_size_;
  int max_restarts_ = 0;
  int restarts_ = 0;
  std::optional<RoundStarted> round_;  // the latest
  std::chrono::steady_clock::time_point round_since_{};
  std::chrono::microseconds until_run_{};
  std::vector<WorkerStatus> workers_;
  std::array<RestartTotal, 6> totals_;  // by reason; without the downtime of the latest restart
  std::deque<RestartRecord> records_;
  std::deque<std::pair<EventHead, JobEvent>> events_;
};

}  // namespace ddprun::agent
