// The events of a job as JSON lines (--events). Pure: tests compare whole lines. Programs rely on
// the schema, which agent/README.md documents: fields may be added, and any other change needs
// another kEventSchema.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/failure/hang_report.h"
#include "agent/status/downtime.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/lag_core.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

inline constexpr int kEventSchema = 3;

struct JobStarted {
  std::string program;
  int workers = 1;
  int max_restarts = 0;
  int pid = 0;  // the agent's
};
struct RoundStarted {
  struct Worker {
    int rank = 0;
    int local_rank = 0;
    int pid = 0;  // 0: it was not started
  };
  Round round{};
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::vector<Worker> workers;
  std::chrono::microseconds since_cause{};  // since job start, or what ended the last round
  int node_rank = 0;
  int node_count = 1;
  int world_size = 1;  // number of workers on all nodes
};
struct WorkerExited {
  Round round{};
  RoundStarted::Worker worker;
  ExitStatus status;
  bool was_told_to_stop = false;
  bool killed_for_memory = false;
  std::string message;
  std::optional<WorkerProgress> progress = {};
};
struct RoundStopping {
  Round round{};
  // worker_failed, signal, preemption, leader, leader_lost, leader_replaced, declared_lost, job_end
  std::string_view reason;
};
struct Restarted {
  Round round{};  // the new one
  int restart = 0;
  int max_restarts = 0;
  std::optional<rdzv::WorkerFailure> failure;    // that ended the previous round
  std::chrono::microseconds until_run{};         // from the failure until the new round ran
  std::optional<rdzv::NodeGone> lost_node = {};  // the first that is gone since the previous round
  int nodes_gone = 0;
  int nodes_joined = 0;
  bool was_asked_for = false;  // with ddpctl restart
  std::string asked_by = {};   // and by which process; empty: not known
  // Nothing: all workers were started anew. Else only `failure`'s worker was replaced, in place: the
  // round and all others went on.
  struct InPlace {
    std::uint32_t generation = 0;
    int rank = 0;
    std::optional<RoundStarted::Worker> newcomer;  // if the rank is of this node
  };
  std::optional<InPlace> in_place = {};
  Downtime downtime_before = no_downtime();  // of the restart before; in no line
};
struct Recovered {
  Round round{};
  Downtime downtime;
  std::optional<std::uint32_t> generation = {};  // after a replacement in place
};
struct SignalReceived {
  int signal = 0;
};
struct PreemptNotice {                                      // the provider takes this machine back
  std::string from;                                         // aws, gcp, azure, command
  std::string instance;                                     // its id or name; empty: not known
  std::optional<std::chrono::system_clock::time_point> at;  // when it goes, if that is known
  std::string sentence;
};
struct WorkerKilledAfterGrace {
  Round round{};
  RoundStarted::Worker worker;
  std::chrono::microseconds grace{};
};
struct KeeperReplaced {
  int pid = 0;
};
struct ReplicasDiffer {  // two ranks differ in what is equal on all ranks
  Round round{};
  std::int64_t step = 0;  // at which it was seen first
  int rank = 0;
  int other = 0;
  std::string sentence;
};
struct NanReported {  // a reported value is NaN or infinite
  Round round{};
  int rank = 0;
  std::int64_t step = 0;
  NamedValue value;
  std::string sentence;
};
struct JobFinished {
  rdzv::JobOutcome outcome;
  int exit_code = 0;  // of the agent
  std::chrono::microseconds wall{};
  Downtime downtime = no_downtime();   // all restarts together
  std::optional<double> goodput = {};  // as in NodeStatus
};
struct EventsLost {
  std::uint64_t count = 0;  // lines that were dropped because the reader was too slow
};
struct Requested {        // with ddpctl, from this agent
  std::string_view what;  // stop, restart, replace
  std::string by;         // "ddpctl stop (root, pid 4711)"
};
struct WaitSeen {  // ranks have not come where others wait
  Round round{};
  rdzv::WaitingFor wait;
};
struct HangSeen {
  Round round{};
  rdzv::Hung hung;
};
struct SlowSeen {  // a rank computes slowly
  Round round{};
  rdzv::SlowRank slow;
  std::string host;
  std::string where;  // as in SlowStatus
};
struct HealthSeen {  // a finding about this node, which stays in the job or has not joined it
  std::string_view severity;  // warning, unfit
  std::string sentence;
};
struct UnfitNode {  // this node should not be in the job any more
  std::string node;
  std::string why;
};
struct NodeLeftOut {  // this node waits, and is in no round while enough others are there
  std::string node;
  std::string why;
};
struct HangReported {  // what the ranks do, some seconds later
  HangReport report;
};
using JobEvent =
    std::variant<JobStarted, RoundStarted, WorkerExited, RoundStopping, Restarted, SignalReceived,
                 WorkerKilledAfterGrace, KeeperReplaced, JobFinished, EventsLost, Requested,
                 Recovered, WaitSeen, HangSeen, HangReported, ReplicasDiffer, PreemptNotice,
                 SlowSeen, HealthSeen, UnfitNode, NodeLeftOut, NanReported>;

struct EventHead {
  std::chrono::system_clock::time_point time;
  std::chrono::steady_clock::time_point monotonic;
  std::string job;
  std::string host;
};

// One JSON object and a newline.
std::string event_line(const EventHead& head, const JobEvent& event);

// For a history that keeps events: a failure may have 128 KiB, of which event_line() shows 4.
JobEvent without_what_no_line_shows(JobEvent event);

}  // namespace ddprun::agent
