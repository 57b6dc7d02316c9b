// The messages between agents and the leader. Plain values: a leader in the same process gets them
// directly, another one over a connection (resend_queue.h: in order, none lost, none twice). Every
// message about a round carries its number; messages of another round are dropped in one place on
// each side. Enumerators, and the places in ToLeader and ToAgent, are numbers on the wire: add new
// ones at the end.
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

// A worker that did not end with 0: the data for the report and the leader.
struct WorkerFailure {
  int rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  std::string host;
  int pid = 0;  // 0: the worker could not be started, `message` says why
  ExitStatus status;
  std::chrono::system_clock::time_point when;
  std::string message;                     // from the error file, or why it could not be started
  std::string error_file;                  // the file of `message`; empty: there was none
  std::vector<std::string> stderr_tail;    // the last lines of its stderr
  std::string log_dir;                     // empty: its output was not kept
  std::optional<WorkerProgress> progress;  // its last report over its link, read at its end
  bool killed_for_memory = false;  // by the kernel; if `status` is not SIGKILL: a child was killed
  bool was_told_to_stop = false;   // it ended after the group was told to stop
  bool is_worth_a_retry = true;    // false: it would fail again in the same way (no such program)
  // It was killed because it hung: the verdict, a sentence; then `message` is its stack. Empty: it was not.
  std::string hang = {};
  // It was killed because a user asked for it: "ddpctl replace (root, pid 4711)". Empty: it was not.
  std::string asked_by = {};

  bool operator==(const WorkerFailure&) const = default;
};

// A node that is no longer part of the job, and why.
struct NodeGone {
  enum class How {
    kDisconnected,  // its connection broke and was not resumed: the agent or its host died
    kSilent,        // its connection is open but no data comes: stopped, hung, a cable pulled
    kReplaced,      // its connection was broken, and another node asked for its rank
    kLeft,          // it announced that it leaves
    kStuck,         // a worker there did not end even after SIGKILL
    kUnresponsive,  // its agent sends heartbeats but does not do what it is told
    kLeftOut,       // it waits, and takes part in no round: left_out.h says when
  };
  How how = How::kDisconnected;
  int node_rank = 0;  // -1: it waited and had none
  std::string host;
  std::string why = {};  // kLeftOut: "ddpctl drain (root, pid 4711)"

  bool operator==(const NodeGone&) const = default;
};

std::string name_of(const NodeGone& gone);  // "node 3 (b12)"
// "node 3 (b12) was lost: nothing was heard of it for too long"
std::string describe(const NodeGone& gone);

// How a job ended; the same on every node.
struct JobOutcome {
  enum class Kind { kSucceeded, kFailed, kStopped, kCannotRun };
  Kind kind = Kind::kSucceeded;
  int exit_code = 0;
  std::optional<WorkerFailure> cause;       // kFailed: the first one
  std::vector<WorkerFailure> consequences;  // the other failures of that round
  int consequences_left_out = 0;            // how many were omitted
  std::optional<NodeGone> lost_node;        // the first that was lost since the last round began
  int stop_signal = 0;                      // kStopped; 0: a notice of preemption, without a signal
  // kCannotRun: what, where, what to try. kFailed: why there is no other try, if the budget does not say it.
  // kStopped: "ddpctl stop (root, pid 4711)" if a user has asked for it, or on the node that it came to, the notice of
  // preemption; empty: a signal came, or another node's notice.
  std::string sentence;
  int restarts = 0;            // charged to the budget
  int restarts_asked_for = 0;  // by a user; as far as the last leader knows
  int in_place = 0;            // of `restarts`, without another round; likewise
  // The latest of these requests, and of those to replace a worker: "ddpctl restart (root, pid 4711)".
  std::vector<std::string> requests;
  std::vector<std::string>
      left_out;  // hosts that were to be left out at the end: "b3 (10.0.0.3): GPU 5 is lost"
  // Ranks of the last round that had ended with 0 before it was stopped.
  std::vector<int> done;
  Round last_round{};

  bool operator==(const JobOutcome&) const = default;
};

// For messages that say no more than this.
struct OfRound {
  Round round{};
  bool operator==(const OfRound&) const = default;
};
struct WithSentence {
  std::string sentence;
  bool operator==(const WithSentence&) const = default;
};

// ---- agent to leader

// What a node that joins again knows of the job. For a leader that was started again this is the
// only knowledge of the past.
struct LastRound {
  Round round{};       // the last one in which its workers ran; it accepts only later ones
  int node_count = 1;  // of that round
  int restarts = 0;    // charged to the budget by then
  bool operator==(const LastRound&) const = default;
};

struct NodeHello {
  int local_world_size = 1;
  std::string role;
  std::string address;  // where other nodes' workers reach this node; empty: as the leader sees it
  std::string host;     // its name: for the order of ranks and for messages
  std::optional<int> node_rank;  // the rank that it asks for
  std::uint64_t session = 0;     // a random number of the agent, needed to resume a connection
  std::string run_id;            // these must be the same on every node
  std::string program;           // its file name, without the folder
  std::string user;              // the numeric user id that started it
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::chrono::seconds restart_window{0};  // a restart counts for so long; 0: for ever
  int no_progress_restarts = 0;
  std::chrono::seconds shutdown_timeout{30};  // from the stop signal to SIGKILL, on this node
  std::optional<LastRound> last_round;        // nullopt: its workers have not run yet
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
// The first worker of this node ended with 0: newcomers must wait now.
struct SomeWorkersDone : OfRound {};
// All workers of this node have ended.
struct WorkersDone {
  Round round{};
  bool has_left = false;  // because another node is preempted; else each ended with 0
  bool operator==(const WorkersDone&) const = default;
};
struct RoundStopped {  // the answer to RoundStop: no worker of this node is left
  Round round{};
  std::vector<WorkerFailure> failures;  // of workers that ended while stopping
  std::vector<int> done = {};           // ranks that had ended with 0 before
  bool operator==(const RoundStopped&) const = default;
};
struct NodeLeaving {  // sent before the workers are signalled, so that their end is no failure
  int signal = 15;    // SIGTERM; 1 to 64; of a preemption also 0: a notice has come, and no signal
  bool is_preemption = false;  // the scheduler wants the node back: the job may be queued again
  bool operator==(const NodeLeaving&) const = default;
};
// A worker did not end even after SIGKILL: this node cannot take part any more.
struct NodeStuck : WithSentence {};
// A user wants another round with the same nodes. The round is the one to end: two simultaneous
// requests cause one restart.
struct RestartAsked {
  Round round{};
  std::string by = {};  // "ddpctl restart (root, pid 4711)"
  bool operator==(const RestartAsked&) const = default;
};
struct StopAsked {      // a user wants the whole job to end
  int signal = 15;      // reported as the reason; 1 to 64
  std::string by = {};  // "ddpctl stop (root, pid 4711)"; empty: the leader got that signal
  bool operator==(const StopAsked&) const = default;
};
struct Goodbye {  // the answer to JobEnd: the leader need not stay for this node
  bool operator==(const Goodbye&) const = default;
};
// All workers of this node have announced that they can recover. Once in a round.
struct WorkersRecover : OfRound {};
// A worker failed, and a prepared standby of its rank waits, or it had taken the place of another one
// itself: its step may be poison. The others were not told of it: ReplaceWorker or GroupBroken follows.
struct WorkerReplaceable {
  Round round{};
  WorkerFailure failure;
  std::int64_t committed = 0;    // steps of the job that were done on its rank
  std::uint32_t generation = 0;  // in which its groups were made last; 0: at its start
  bool has_standby = true;       // false: its place cannot be taken
  bool operator==(const WorkerReplaceable&) const = default;
};
struct Regrouped {  // the answer to ReplaceWorker: all workers of this node are in that generation
  Round round{};
  std::uint32_t generation = 0;
  bool operator==(const Regrouped&) const = default;
};
// Another answer: a worker of this node has left its loop of steps, and will not come to that generation.
struct CannotRegroup {
  Round round{};
  std::uint32_t generation = 0;
  bool operator==(const CannotRegroup&) const = default;
};
// This node is preempted while its workers run: all workers of the round are to leave at the same step boundary.
struct LeaveWanted : OfRound {};
// A stop signal has come to this node while its workers run, and they can be stopped between two steps. NodeLeaving follows
// the leader's RoundStop, or comes earlier.
struct StopWanted : OfRound {};
// From the leader to every node of the round: each worker waits at its next step boundary until this comes.
struct HoldSteps {
  enum class Until {
    kLeaveAt,    // they are to leave
    kRoundStop,  // they are to be stopped
    kNow,        // they go on: the round is not stopped after all. No answer
  };
  Round round{};
  Until until = Until::kLeaveAt;
  bool operator==(const HoldSteps&) const = default;
};
// The answer to HoldSteps. No worker of this node passes a boundary behind this one before LeaveAt or RoundStop comes.
struct StepsHeld {
  Round round{};
  // The last boundary that a worker of this node has passed; 0: none. If they are to be stopped: the steps that one has done;
  // less than 0: they cannot be stopped between two steps, and go on.
  std::int64_t passed = 0;
  HoldSteps::Until until = HoldSteps::Until::kLeaveAt;  // as it was asked for
  bool operator==(const StepsHeld&) const = default;
};
// A machine: an agent that is started again is of the same one.
struct HostName {
  std::string host;
  std::string address;
  bool operator==(const HostName&) const = default;
};
// A user wants that the nodes on a host take part in no round, or that they may again.
struct DrainAsked {
  enum class What {
    kDrain,        // a round that runs with it is stopped between two steps
    kDrainAtOnce,  // or now
    kUndrain,
  };
  HostName name;
  What what = What::kDrain;
  std::string by = {};  // "ddpctl drain (root, pid 4711)"
  bool operator==(const DrainAsked&) const = default;
};
// This node's health check says that it should take part in no round.
struct NodeUnfit : WithSentence {};
struct NodeFit {  // after NodeUnfit: it may again
  bool operator==(const NodeFit&) const = default;
};
using ToLeader =
    std::variant<NodeHello, StoreOpened, StoreNotOpened, WorkerFailed, SomeWorkersDone, WorkersDone,
                 RoundStopped, NodeLeaving, NodeStuck, Goodbye, RestartAsked, StopAsked,
                 WorkersRecover, WorkerReplaceable, Regrouped, CannotRegroup, LeaveWanted,
                 StepsHeld, StopWanted, DrainAsked, NodeUnfit, NodeFit>;

// ---- leader to agent

struct Refused : WithSentence {};  // the answer to NodeHello: what to change
// The node has joined, but an option cannot be honoured.
struct Warning : WithSentence {};
struct WaitForNodes {  // sent at the arrival of a node, and to all at next_notice()
  int present = 0;
  int min_nodes = 1;
  int max_nodes = 1;
  std::chrono::seconds left{};  // until the job is given up, or of the last call
  std::string remark = {};  // which nodes are missing or were turned away; empty: nothing is known
  bool operator==(const WaitForNodes&) const = default;
};
// "waiting for nodes: 1 of 2 are here, 900 s left; node rank 1 is missing"
std::string describe(const WaitForNodes& wait);
struct WaitAsSpare {
  enum class Why { kNoRoom, kJobIsFinishing, kLeftOut };
  Why why = Why::kNoRoom;
  std::string left_out = {};  // kLeftOut: why, as in NodeGone
  bool operator==(const WaitAsSpare&) const = default;
};
// Why the node waits: "some workers of the job have finished already"
std::string describe(const WaitAsSpare& wait);

struct OpenStore : OfRound {};  // to group rank 0 only
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
  std::optional<WorkerFailure> after_failure;  // charged to the budget; without stderr_tail
  std::optional<NodeGone> after_loss;          // the first node that has gone since the last round
  bool after_arrival = false;                  // the last round ended to let a node in
  bool after_request = false;                  // the last round ended because a user asked for it
  std::string asked_by;                        // and which one; as in RestartAsked
  int nodes_gone = 0;                          // since the last round
  int nodes_joined = 0;                        // since the last round; 0 for the first
  int restarts = 0;                            // charged to the budget so far
  int max_restarts = 0;
  bool operator==(const RoundStart&) const = default;
};
struct RoundStop {
  enum class Why {
    kPlanned,  // a leave, an arrival, or a restart or stop that a user asked for
    kFailure,  // a worker failed, or a node is lost: no collective can complete any more
  };
  Round round{};
  Why why = Why::kPlanned;
  std::optional<NodeGone> gone = {};  // the node whose loss or leave stops the round
  // After kPlanned: every worker goes on until it has done so many steps, and is stopped then; none: at once.
  std::optional<std::int64_t> after_step = {};
  bool operator==(const RoundStop&) const = default;
};
struct DeclaredLost {  // the last message to a removed node, which may join again
  bool operator==(const DeclaredLost&) const = default;
};
struct JobEnd {
  JobOutcome outcome;
  bool operator==(const JobEnd&) const = default;
};
// A worker of another node failed, or that node is lost: what the workers here wait for together with
// it will not come. Sent before anything that follows from it, such as RoundStop.
struct GroupBroken {
  Round round{};
  int rank = 0;  // that worker's; of a lost node the first one's
  bool operator==(const GroupBroken&) const = default;
};
// To every node of the round: the prepared standby of this rank takes its place, and all workers make
// their groups anew. It may come again, with the next generation, before all nodes have regrouped.
struct ReplaceWorker {
  Round round{};
  std::uint32_t generation = 0;  // that begins; counts from 1 in each round
  int rank = 0;
  WorkerFailure failure;  // charged to the budget; without stderr_tail
  int restarts = 0;       // charged to the budget so far, with this one
  int max_restarts = 0;
  bool operator==(const ReplaceWorker&) const = default;
};
// To every node of the round: all workers leave at this boundary, and go on until then.
struct LeaveAt {
  Round round{};
  std::int64_t boundary = 1;
  bool operator==(const LeaveAt&) const = default;
};
using ToAgent =
    std::variant<Refused, Warning, WaitForNodes, WaitAsSpare, OpenStore, RoundStart, RoundStop,
                 DeclaredLost, JobEnd, GroupBroken, ReplaceWorker, HoldSteps, LeaveAt>;

}  // namespace ddprun::rdzv
