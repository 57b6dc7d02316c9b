// Tells of reported values that are NaN or infinite, and ends the job for one if the user wants it (--on-nan): the worker is
// killed, and its failure is one that no restart cures (Workers). Owned by the Supervisor; event loop only.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "agent/core/nan_lines.h"
#include "agent/core/node_events.h"
#include "agent/core/worker_event.h"
#include "agent/events/event_log.h"
#include "agent/supervisor/parts.h"
#include "agent/supervisor/workers.h"

namespace ddprun::agent {

class Nans {
 public:
  using Stop = std::function<void(const WorkerHung&)>;
  // `stop`: the worker is to be killed.
  Nans(const AgentParts& parts, Workers& workers, EventLog& events, Stop stop)
      : parts_(parts), workers_(workers), events_(events), stop_(std::move(stop)) {}

  void on(const WorkerEvent& event);
  // For the report of a failure: the latest of this round, by name. Empty: none, or the failure says it.
  std::string remark() const;

 private:
  void on(const worker_event::NotFinite& reported);
  void on(const worker_event::Ending& ending);
  void end(int local_rank, const std::string& sentence);

  const AgentParts parts_;
  Workers& workers_;
  EventLog& events_;
  const Stop stop_;
  NanLines lines_;
  struct Told {
    int rank = 0;
    std::string sentence;
    bool is_finite_again = false;  // in the last report of that rank, which has ended
  };
  std::map<std::string, Told> told_;  // by name: the last line
  bool has_stopped_ = false;
};

}  // namespace ddprun::agent
