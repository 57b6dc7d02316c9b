// The status of one node, as its agent knows it: for `ddpctl status`, metrics, the live page, and
// the other nodes of the job, which get it as JSON. Values: copy freely, any thread.
//
// In JSON every field has the name that it has here; durations are in microseconds and end in
// `_us`, times are microseconds since 1970 and end in `_unix_us`. Missing values are null.
// agent/README.md lists the fields, which stay compatible like those of the events.
//
// `workers` has what workers reported over their links: it may be wrong, and it is a moment old.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/status/downtime.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/ids.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/worker_abi/group_calls.h"
#include "rendezvous/common/worker_abi/worker_progress.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

inline constexpr int kStatusSchema = 3;
inline constexpr std::size_t kRestartsKept = 50;  // the latest ones; the totals count all
inline constexpr std::size_t kEventsKept = 50;

enum class NodeState {
  kLooking,   // for the leader
  kWaiting,   // for a round to begin
  kRunning,   //
  kStopping,  // its workers
  kEnded,     // delivers output and report
};
std::string_view name_of(NodeState state);  // "looking", …

enum class WorkerState {
  kNotStarted,  // it could not be started, or no round has begun
  kRunning,     //
  kSucceeded,   // ended with 0
  kFailed,      // ended in another way, by itself
  kStopped,     // ended in another way, after the group was told to stop
};
std::string_view name_of(WorkerState state);  // "not_started", …

// Why a new round followed.
enum class RestartReason {
  kWorkerFailed,
  kNodeLost,
  kNodeLeft,    // announced: a preemption or a stop of that node
  kNodeJoined,  // there was room for it
  kRequested,   // ddpctl restart
  kOther,       // not known, as after a change of the leader
};
std::string_view name_of(RestartReason reason);  // "worker_failed", …

struct WorkerStatus {
  int rank = 0;
  int local_rank = 0;
  int pid = 0;         // 0: it could not be started
  std::string device;  // "cuda:3"; empty: not known
  WorkerState state = WorkerState::kNotStarted;
  std::optional<ExitStatus> exit;          // once it has ended
  std::optional<WorkerProgress> progress;  // its last report; nothing: there was none
  RankState held = RankState::kRuns;
  std::chrono::nanoseconds held_for{};  // in that state, without having run meanwhile
  // In its process groups; nothing: it keeps no record.
  std::vector<GroupCalls> calls = {};
  bool keeps_record = false;  // also where it is in no group yet
  bool all_wait = false;      // each of its threads that make calls is inside of the wait for one

  bool operator==(const WorkerStatus&) const = default;
};

// A verdict of this node's agent (rendezvous/round/hang_core.h), as long as it holds.
struct HungStatus {
  rdzv::Hung::Why why{};
  std::vector<int> ranks;
  std::string sentence;
  std::chrono::microseconds waited{};

  bool operator==(const HungStatus&) const = default;
};

// A rank that computes slowly (rendezvous/round/lag_core.h), as long as it does.
struct SlowStatus {
  int rank = 0;
  double share = 0;                  // the part of the last minute's steps in which it was late
  std::chrono::microseconds lag{};   // the median of how late
  std::chrono::microseconds step{};  // how long one takes
  std::string where;                 // "next_batch (loader.py:40)"; empty: not known
  std::string sentence;

  bool operator==(const SlowStatus&) const = default;
};

// Where the time of a rank has gone in the last minute; shares of it.
struct RankTimesStatus {
  int rank = 0;
  std::optional<double> in_calls;   // collectives; nothing: it is not known when they were over
  double waiting = 0;               // in them for ranks that had not come
  std::optional<double> outside;    // all other time
  double late = 0;                  // steps in which it was late, of all steps
  std::chrono::microseconds lag{};  // the median of how late it then was

  bool operator==(const RankTimesStatus&) const = default;
};

struct RestartRecord {
  std::chrono::system_clock::time_point when;  // when the new round ran
  Round round{};                               // the new one
  RestartReason reason = RestartReason::kOther;
  std::optional<int> rank;  // the rank that failed
  std::string host;         // where it failed, or the node that was lost or left; empty: neither
  std::string sentence;     // for people: "rank 3 on b12 ended with exit code 1"
  Downtime downtime;
  // Of this round's groups, if only that rank was replaced, in place; nothing: all workers were started.
  std::optional<std::uint32_t> generation = {};

  bool operator==(const RestartRecord&) const = default;
};

// All restarts for one reason.
struct RestartTotal {
  RestartReason reason = RestartReason::kOther;
  int count = 0;
  std::chrono::microseconds downtime{};

  bool operator==(const RestartTotal&) const = default;
};

// The round's store, on the node that serves it.
struct StoreStatus {
  std::uint64_t requests = 0;  // of this round
  std::uint64_t connections = 0;
  std::uint64_t keys = 0;
  std::uint64_t memory_bytes = 0;

  bool operator==(const StoreStatus&) const = default;
};

// An import that each restart repeats, because no standby has done it.
struct ImportTime {
  std::string module;
  std::chrono::microseconds time{};
  bool can_be_preloaded = true;  // as far as it is known: it was not left out for a reason

  bool operator==(const ImportTime&) const = default;
};

// Processes that wait to become workers at a restart.
struct StandbyStatus {
  int waiting = 0;
  int wanted = 0;
  std::string why_none;  // empty: they wait, or are being made
  std::vector<ImportTime> imports = {};

  bool operator==(const StandbyStatus&) const = default;
};

// Whether workers that die are replaced in place, and by whom.
struct ReplacementStatus {
  bool can_recover = false;      // all workers of this node have said that they can
  int waiting = 0;               // standbys for ranks
  int wanted = 0;                // one for each worker
  std::uint32_t generation = 0;  // of this round's groups: counts the replacements of the job in it
  std::string why_none;          // empty: they wait, are being made, or it is not known yet
  std::string why_unprepared =
      {};  // why they make their set-ups only then; empty: they have made them

  bool operator==(const ReplacementStatus&) const = default;
};

// A GPU of this node, as its driver says. Nothing: it does not say.
struct GpuStatus {
  int index = 0;
  std::string uuid;
  std::string pci_address;
  std::vector<int> ranks;  // that use it, as far as it is known
  std::optional<std::uint64_t> memory_used = {};
  std::optional<std::uint64_t> memory_total = {};
  std::optional<int> utilization = {};    // percent
  std::optional<int> temperature = {};    // in degrees Celsius
  std::optional<std::uint64_t> ecc = {};  // uncorrected errors since the round began
  std::vector<int> xids = {};             // since the round began
  std::string trouble = {};               // why it does not say more; empty: it does

  bool operator==(const GpuStatus&) const = default;
};

struct NodeStatus {
  std::string host;
  int agent_pid = 0;
  NodeState state = NodeState::kLooking;
  bool leads = false;  // the leader is in this agent

  // Of the current round, or of the last one on this node; nothing and zeros before the first.
  std::optional<Round> round;
  int node_rank = 0;
  int node_count = 0;
  int world_size = 0;
  int rank_offset = 0;
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::chrono::microseconds round_age{};  // since its workers were started

  int local_world_size = 1;
  std::vector<WorkerStatus> workers;  // by local rank
  int workers_left_out = 0;  // workers that are not in the list, if the answer would be too large

  int restarts = 0;  // that count for --max-restarts
  int max_restarts = 0;
  int restarts_in_place = 0;              // of them, that replaced one worker only
  std::chrono::microseconds wall{};       // since this agent began
  std::chrono::microseconds until_run{};  // of that, until its first round ran; 0: none has run yet
  // Until every rank of this node had done its first step, as far as they report any.
  std::chrono::microseconds until_first_step{};
  Downtime downtime = no_downtime();  // all restarts together
  // The share of the time since the first step that moved the job forward; nothing: no step is known.
  std::optional<double> goodput;
  std::vector<RestartTotal> restart_totals;  // reasons that occurred, in the order of RestartReason
  std::vector<RestartRecord> recent_restarts;  // oldest first

  std::chrono::microseconds longest_wait{};  // of its ranks in a collective, that has ended
  std::vector<HungStatus> hung;              // told by this node
  std::vector<SlowStatus> slow;              // likewise, of the whole job; by rank
  std::vector<RankTimesStatus> rank_times;   // likewise

  std::vector<GpuStatus> gpus;                   // empty: the job uses none, or none is known
  std::chrono::microseconds gpus_age{};          // since they were asked
  std::string gpu_trouble;                       // why they do not answer; empty: they do
  std::optional<StoreStatus> store;              // none: another node or rank 0 serves it
  std::optional<StandbyStatus> standbys;         // none: --standby is off
  std::optional<ReplacementStatus> replacement;  // likewise
  std::vector<std::string>
      events;  // the latest, oldest first: lines of --events without their ends

  bool operator==(const NodeStatus&) const = default;
};

// The state of this node at one moment, collected by the supervisor, for those who display it: the
// status line, systemd, Kubeflow, ddpctl.
struct NodeSnapshot {
  NodeState state = NodeState::kLooking;
  bool leads = false;
  rdzv::RoundStart round;                               // the current one, or the last
  int running = 0;                                      // number of workers that run
  std::vector<std::optional<WorkerProgress>> progress;  // by local rank; none: not reported
  std::optional<StoreStatus> store;
  std::optional<StandbyStatus> standbys;
  std::optional<ReplacementStatus> replacement;
  std::chrono::microseconds wall{};
};

// Fills in what JobHistory does not keep: the state, the store, and the progress of the workers
// that `status` lists.
inline void fill(NodeStatus& status, const NodeSnapshot& node) {
  status.state = node.state;
  status.leads = node.leads;
  status.wall = node.wall;
  status.store = node.store;
  status.standbys = node.standbys;
  status.replacement = node.replacement;
  for (WorkerStatus& worker : status.workers) {
    worker.progress = node.progress.at(static_cast<std::size_t>(worker.local_rank));
  }
}

std::string to_json(const NodeStatus& status);
// At most `bytes_max` long: older events, then the last workers are left out.
std::string to_json_within(NodeStatus status, std::size_t bytes_max);
Result<NodeStatus> node_status_from(std::string_view json);

}  // namespace ddprun::agent
