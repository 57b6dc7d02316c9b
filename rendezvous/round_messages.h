// What agents and the leader say to each other. Plain values: the single-node leader passes them in
// process, a leader elsewhere gets them over a connection. Every message carries its round, and
// what belongs to an earlier round is dropped in one visible place on each side.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/exit_status.h"
#include "rendezvous/base/ids.h"
#include "rendezvous/base/worker_progress.h"

namespace ddprun::rdzv {

// One worker that did not end with 0: all that the report and the leader need to know of it.
struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host;
  int pid = 0;  // 0: the worker could not be started, `message` says why
  ExitStatus status;
  std::chrono::system_clock::time_point when;
  std::string message;                   // from the error file, or why it could not be started
  std::string error_file;                // where `message` was read; empty: there was none
  std::vector<std::string> stderr_tail;  // its last lines
  std::string log_dir;                   // empty: its output was not kept
  std::optional<WorkerProgress> progress;  // as it last said over its link, seen at its end
  bool killed_for_memory = false;  // by the kernel; with another end than SIGKILL: a child was
  bool was_told_to_stop = false;   // it ended after the group was told to stop
  bool is_worth_a_retry = true;    // false: the same would happen again (no such program)

  bool operator==(const WorkerFailure&) const = default;
};

// How a job ended; the same on every node.
struct JobOutcome {
  enum class Kind { kSucceeded, kFailed, kStopped, kCannotRun };
  Kind kind = Kind::kSucceeded;
  int exit_code = 0;
  std::optional<WorkerFailure> cause;       // kFailed: the first one
  std::vector<WorkerFailure> consequences;  // the others of that round
  int stop_signal = 0;                      // kStopped
  std::string sentence;                     // kCannotRun: what, where, what to try
  int restarts = 0;                         // failures that the budget paid for
  Round last_round{};

  bool operator==(const JobOutcome&) const = default;
};

// ---- agent to leader

struct NodeHello {
  int local_world_size = 1;
  std::string role;
  std::string address;  // where the other nodes' workers reach this node
  bool operator==(const NodeHello&) const = default;
};
struct StoreOpened {  // the answer to OpenStore
  Round round{};
  std::uint16_t port = 0;
  bool operator==(const StoreOpened&) const = default;
};
struct StoreNotOpened {  // the other answer to OpenStore
  Round round{};
  std::string why;
  bool operator==(const StoreNotOpened&) const = default;
};
struct WorkerFailed {
  Round round{};
  WorkerFailure failure;
  bool operator==(const WorkerFailed&) const = default;
};
struct WorkersDone {  // all workers of this node ended with 0
  Round round{};
  bool operator==(const WorkersDone&) const = default;
};
struct RoundStopped {  // the answer to RoundStop: no worker of this node is left
  Round round{};
  std::vector<WorkerFailure> failures;  // of workers that ended while stopping
  bool operator==(const RoundStopped&) const = default;
};
struct NodeLeaving {  // said before the workers are signalled, so that what follows is no failure
  int signal = 0;
  bool is_preemption = false;  // the scheduler wants the node back: the job may be queued again
  bool operator==(const NodeLeaving&) const = default;
};
struct NodeStuck {  // a worker did not end even after SIGKILL: this node cannot take part any more
  std::string sentence;
  bool operator==(const NodeStuck&) const = default;
};
using ToLeader = std::variant<NodeHello, StoreOpened, StoreNotOpened, WorkerFailed, WorkersDone,
                              RoundStopped, NodeLeaving, NodeStuck>;

// ---- leader to agent

struct OpenStore {  // to group rank 0 only
  Round round{};
  bool operator==(const OpenStore&) const = default;
};
struct RoundStart {
  Round round{};
  int node_rank = 0;
  int node_count = 1;
  int rank_offset = 0;  // of this node's first worker
  int world_size = 1;
  int role_rank_offset = 0;
  int role_world_size = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::optional<WorkerFailure> after_failure;  // why the round before ended
  int restarts = 0;                            // failures that the budget has paid for so far
  int max_restarts = 0;
  bool operator==(const RoundStart&) const = default;
};
struct RoundStop {
  Round round{};
  bool operator==(const RoundStop&) const = default;
};
struct JobEnd {
  JobOutcome outcome;
  bool operator==(const JobEnd&) const = default;
};
using ToAgent = std::variant<OpenStore, RoundStart, RoundStop, JobEnd>;

}  // namespace ddprun::rdzv
