// What happens to the workers of this node, as one value. Each event goes to the observers, to what watches for hangs, and
// to the NodeCore, as far as the core decides upon it (node_event()). Workers emits it when its own state is
// consistent: the receiver may call Workers. Values; pure.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/node_core.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

namespace worker_event {

// ---- a round begins and ends

struct Started {  // the processes are made; they need not have executed their programs yet
  std::vector<pid_t> pids;  // by local rank; 0: no process could be made
};
struct Executed {
  int local_rank = 0;
};
struct NotStarted {  // the round was stopped before any process was made
  int local_rank = 0;
};
struct Closed {};  // no process is left that a worker of this round has started

// ---- a worker ends

// It has ended. Its progress and its record can be read in the WorkerView now, and not any more later.
struct Ending {
  int local_rank = 0;
  ExitStatus status;
  bool was_told_to_stop = false;
};
// The preemption signal has ended a worker, and may not have come to the agent yet: Slurm may signal all processes of a
// job at once.
struct Preempted {
  int signal = 0;
};
struct ToldToLeave {  // as WorkerTold
  int local_rank = 0;
};
struct Held {  // as WorkersHeld
  std::int64_t passed = 0;
  std::optional<std::chrono::milliseconds> step = {};
  rdzv::HoldSteps::Until until{};
};
struct Parked {};  // as WorkersParked
// Follows Ending, when its error file is read. Or it could not be started, and nothing went before.
struct Ended {
  rdzv::WorkerFailure end;  // also of a worker that has succeeded
  std::optional<Replaceable> replaceable = {};
  bool has_left = false;  // as WorkerEnded has it
};
struct Killed {  // after its grace period
  int local_rank = 0;
  pid_t pid = 0;
  std::chrono::milliseconds grace{};
};
struct StacksTaken {};  // what NodeCore asked for with its TakeStacks action

// ---- steps

struct Stepped {
  int local_rank = 0;
  StepMarks marks;
};
struct ReplicasDiffer {  // two ranks differ in what is equal on all ranks
  std::int64_t step = 0;
  int rank = 0;
  int other = 0;
  std::string what;
};
struct NotFinite {  // a value that a worker has reported
  int local_rank = 0;
  std::int64_t step = 0;
  NamedValue value;
};

// ---- replacement in place

struct CanRecover {};  // all workers of this node have said so
struct CannotRegroup {
  int local_rank = 0;
};
struct Replaced {  // a generation has begun
  Replace what;
  pid_t newcomer = 0;  // the process that has taken the place, if the rank is of this node
};
struct NotReplaced {  // no standby could take the place of this worker, whose failure is known
  int local_rank = 0;
  rdzv::WorkerFailure failure;
};
struct Regrouped {
  int local_rank = 0;
  std::uint32_t generation = 0;
};
struct Committed {  // a step, in that generation
  int local_rank = 0;
  std::uint32_t generation = 0;
};

struct KeeperReplaced {
  pid_t pid = 0;
};

using What =
    std::variant<Started, Executed, NotStarted, Closed, Ending, Preempted, ToldToLeave, Held,
                 Parked, Ended, Killed, StacksTaken, Stepped, ReplicasDiffer, NotFinite, CanRecover,
                 CannotRegroup, Replaced, NotReplaced, Regrouped, Committed, KeeperReplaced>;

}  // namespace worker_event

struct WorkerEvent {
  Round round{};  // the current one, or the last
  worker_event::What what;
};

// The event of the NodeCore that this is; none: the core does not decide upon it.
std::optional<NodeEvent> node_event(const WorkerEvent& event);

}  // namespace ddprun::agent
