// What agents and the leader say to each other. Plain values: the single-node leader passes them in
// process, a leader elsewhere gets them over a connection (resend_queue.h: in order, none lost, none
// twice). Whatever speaks of a round carries its number, and what belongs to another round is
// dropped in one visible place on each side.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/worker_abi/worker_progress.h"

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
  std::string message;                     // from the error file, or why it could not be started
  std::string error_file;                  // where `message` was read; empty: there was none
  std::vector<std::string> stderr_tail;    // its last lines
  std::string log_dir;                     // empty: its output was not kept
  std::optional<WorkerProgress> progress;  // as it last said over its link, seen at its end
  bool killed_for_memory = false;  // by the kernel; with another end than SIGKILL: a child was
  bool was_told_to_stop = false;   // it ended after the group was told to stop
  bool is_worth_a_retry = true;    // false: the same would happen again (no such program)

  bool operator==(const WorkerFailure&) const = default;
};

// A node that is no longer part of the job, and how that came about.
struct NodeGone {
  enum class How {
    kDisconnected,  // its connection broke and did not come back: the agent or its host died
    kSilent,        // its connection stands, and nothing comes: stopped, hung, a cable pulled
    kReplaced,      // its connection was broken, and another node asked for its place
    kLeft,          // it announced that it goes
    kStuck,         // a worker there did not end even after SIGKILL
    kUnresponsive,  // its agent lives, and does not do what it is told to
  };
  How how = How::kDisconnected;
  int node_rank = 0;
  std::string host;

  bool operator==(const NodeGone&) const = default;
};

// "node 3 (b12) was silent for too long"
std::string describe(const NodeGone& gone);

// How a job ended; the same on every node.
struct JobOutcome {
  enum class Kind { kSucceeded, kFailed, kStopped, kCannotRun };
  Kind kind = Kind::kSucceeded;
  int exit_code = 0;
  std::optional<WorkerFailure> cause;       // kFailed: the first one
  std::vector<WorkerFailure> consequences;  // the others of that round
  int consequences_left_out = 0;            // of a large job
  std::optional<NodeGone> lost_node;        // the first that was lost since the last round began
  int stop_signal = 0;                      // kStopped
  std::string sentence;                     // kCannotRun: what, where, what to try
  int restarts = 0;                         // failures that the budget paid for
  int restarts_asked_for = 0;               // by a person; as far as the last leader knows
  Round last_round{};

  bool operator==(const JobOutcome&) const = default;
};

// ---- agent to leader

// What a node that joins anew knows of the job. A leader that was started again knows nothing of the
// past but this.
struct LastRound {
  Round round{};       // the last one in which its workers ran; it takes only later ones
  int node_count = 1;  // of that round
  int restarts = 0;    // that the budget had paid for then
  bool operator==(const LastRound&) const = default;
};

struct NodeHello {
  int local_world_size = 1;
  std::string role;
  std::string
      address;       // where the other nodes' workers reach this node; empty: as the leader sees it
  std::string host;  // its name: for the order of ranks, and for people
  std::optional<int> node_rank;  // that it asks for
  std::uint64_t session = 0;     // chosen by the agent at random: who resumes a connection knows it
  std::string run_id;            // these must be the same on every node
  std::string program;           // its name, without the folder
  std::string user;              // who started it: the numeric user id
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::chrono::seconds shutdown_timeout{30};  // from the stop signal to SIGKILL, on this node
  std::optional<LastRound> last_round;        // none: its workers ran in none
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
struct SomeWorkersDone {  // the first worker of this node ended with 0: newcomers have to wait now
  Round round{};
  bool operator==(const SomeWorkersDone&) const = default;
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
  int signal = 15;    // SIGTERM; 1 to 64
  bool is_preemption = false;  // the scheduler wants the node back: the job may be queued again
  bool operator==(const NodeLeaving&) const = default;
};
struct NodeStuck {  // a worker did not end even after SIGKILL: this node cannot take part any more
  std::string sentence;
  bool operator==(const NodeStuck&) const = default;
};
struct RestartAsked {  // by a person, who wants another round of the same nodes
  Round round{};       // that is to end: two who ask at the same time get one restart
  bool operator==(const RestartAsked&) const = default;
};
struct StopAsked {  // by a person, who wants the whole job to end
  int signal = 15;  // as which it ends; 1 to 64
  bool operator==(const StopAsked&) const = default;
};
struct Goodbye {  // the answer to JobEnd: the leader need not stay for this node
  bool operator==(const Goodbye&) const = default;
};
using ToLeader =
    std::variant<NodeHello, StoreOpened, StoreNotOpened, WorkerFailed, SomeWorkersDone, WorkersDone,
                 RoundStopped, NodeLeaving, NodeStuck, Goodbye, RestartAsked, StopAsked>;

// ---- leader to agent

struct Refused {  // the answer to NodeHello: what to change
  std::string sentence;
  bool operator==(const Refused&) const = default;
};
struct Warning {  // the node is in, but something that its user asked for cannot be had
  std::string sentence;
  bool operator==(const Warning&) const = default;
};
struct WaitForNodes {  // at the arrival of a node, and every few seconds to all
  int present = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::chrono::seconds left{};  // until the job is given up, or for the last call
  bool operator==(const WaitForNodes&) const = default;
};
struct WaitAsSpare {
  enum class Why { kNoRoom, kJobIsFinishing };
  Why why = Why::kNoRoom;
  bool operator==(const WaitAsSpare&) const = default;
};

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
  std::optional<WorkerFailure> after_failure;  // that the budget paid for; without its last lines
  std::optional<NodeGone> after_loss;          // the first node that is gone since the last round
  bool after_arrival = false;                  // the last round ended to let a node in
  bool after_request = false;                  // the last round ended because a person asked for it
  int nodes_gone = 0;                          // since the last round
  int nodes_joined = 0;                        // since the last round; not told of the first
  int restarts = 0;                            // failures that the budget has paid for so far
  int max_restarts = 0;
  bool operator==(const RoundStart&) const = default;
};
struct RoundStop {
  enum class Why {
    kPlanned,  // a leave, an arrival, a restart or a stop that somebody asked for
    kFailure,  // a worker failed, or a node is lost: no collective can complete any more
  };
  Round round{};
  Why why = Why::kPlanned;
  bool operator==(const RoundStop&) const = default;
};
struct DeclaredLost {  // the last word to a node that was silent too long: it may join anew
  bool operator==(const DeclaredLost&) const = default;
};
struct JobEnd {
  JobOutcome outcome;
  bool operator==(const JobEnd&) const = default;
};
using ToAgent = std::variant<Refused, Warning, WaitForNodes, WaitAsSpare, OpenStore, RoundStart,
                             RoundStop, DeclaredLost, JobEnd>;

}  // namespace ddprun::rdzv
