#include "agent/core/worker_event.h"

namespace ddprun::agent {
namespace worker_event {
namespace {

using Decided = std::optional<NodeEvent>;

// There is no overload for everything: what a new event means for the core is to be said here.
Decided of(Round, const Started&) { return {}; }
Decided of(Round round, const Executed& its) { return WorkerStarted{round, its.local_rank}; }
Decided of(Round round, const NotStarted& its) {
  return WorkerEnded{round, its.local_rank, std::nullopt, {}, /*has_left=*/true};
}
Decided of(Round round, const Closed&) { return RoundClosed{round}; }
Decided of(Round, const Ending&) { return {}; }
Decided of(Round, const Preempted&) { return {}; }  // AgentSignals sends the event
Decided of(Round round, const ToldToLeave& its) { return WorkerTold{round, its.local_rank}; }
Decided of(Round round, const Held& its) {
  return WorkersHeld{round, its.passed, its.step, its.until};
}
Decided of(Round round, const Parked&) { return WorkersParked{round}; }
Decided of(Round round, const Ended& its) {
  WorkerEnded ended{round, its.end.local_rank, std::nullopt, its.replaceable, its.has_left};
  if (!its.end.status.is_success()) ended.failure = its.end;
  return ended;
}
Decided of(Round, const Killed&) { return {}; }
Decided of(Round round, const StacksTaken&) { return agent::StacksTaken{round}; }
Decided of(Round, const Stepped&) { return {}; }
Decided of(Round, const ReplicasDiffer&) { return {}; }
Decided of(Round, const NotFinite&) { return {}; }  // Nans sends the event
Decided of(Round round, const CanRecover&) { return WorkersCanRecover{round}; }
Decided of(Round round, const CannotRegroup& its) {
  return WorkerCannotRegroup{round, its.local_rank};
}
Decided of(Round, const Replaced&) { return {}; }
Decided of(Round round, const NotReplaced& its) {
  return WorkerEnded{round, its.local_rank, its.failure};
}
Decided of(Round round, const Regrouped& its) {
  return WorkerRegrouped{round, its.local_rank, its.generation};
}
Decided of(Round, const Committed&) { return {}; }
Decided of(Round, const KeeperReplaced&) { return {}; }

}  // namespace
}  // namespace worker_event

std::optional<NodeEvent> node_event(const WorkerEvent& event) {
  return std::visit([&](const auto& what) { return worker_event::of(event.round, what); },
                    event.what);
}

}  // namespace ddprun::agent
