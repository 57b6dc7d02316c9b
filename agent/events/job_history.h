// The history of the job on this node: the state of each worker of the current round, the restarts
// with reasons and lost time, and the latest events, which become lines only in fill(). Pure and
// bounded: the totals count everything, the lists keep the latest. Owned by the EventLog.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>

#include "agent/events/event_lines.h"
#include "agent/status/node_status.h"

namespace ddprun::agent {

class JobHistory {
 public:
  explicit JobHistory(int local_world_size);

  void note(const EventHead& head, const JobEvent& event);

  // The parts of the status that are kept here: the round, the workers without their current
  // progress, the restarts, and at most `events_max` events.
  NodeStatus status(std::chrono::steady_clock::time_point now, std::size_t events_max) const;

 private:
  void on(const EventHead& head, const RoundStarted& started);
  void on(const EventHead& head, const WorkerExited& exited);
  void on(const EventHead& head, const Restarted& restarted);
  void on(const EventHead& head, const JobStarted& started);
  void on(const EventHead&, const auto&) {}  // kept in events_ only

  NodeStatus status_;  // the latest, without what is below
  std::chrono::steady_clock::time_point round_since_{};
  std::array<RestartTotal, 6> totals_;  // by reason
  std::deque<RestartRecord> records_;
  std::deque<std::pair<EventHead, JobEvent>> events_;
};

}  // namespace ddprun::agent
