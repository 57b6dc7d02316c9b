// What a node remembers of its job for those who look at it later: how each worker of the round is,
// which restarts there were for which reasons and what they cost, and the latest events. Pure, and
// bounded: the totals count everything, the lists hold the latest.
//
// Owned by the EventLog, which tells it of every event. The mistake to avoid: making lines here of
// what perhaps nobody will ever ask for; events are kept as values.
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

class JobHistory {
 public:
  explicit JobHistory(int local_world_size);

  void note(const EventHead& head, const JobEvent& event);

  // The parts of the status that are memory: the round, workers without their progress, restarts,
  // and at most so many events.
  void fill(NodeStatus& status, std::chrono::steady_clock::time_point now,
            std::size_t events_max) const;

 private:
  void on(const EventHead& head, const RoundStarted& started);
  void on(const EventHead& head, const WorkerExited& exited);
  void on(const EventHead& head, const Restarted& restarted);
  void on(const EventHead& head, const JobStarted& started);
  void on(const EventHead&, const auto&) {}  // nothing that is not in its line

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
