// The events of a job's life as JSON lines (--events). Pure: tests compare whole lines. The schema
// is a promise to programs that read it: agent/README.md documents it, fields may be added, and
// whatever else changes gets another kEventSchema.
//
// The mistake to avoid: putting bytes of a worker into a line in any other way than these functions
// do. They need not be UTF-8, and a line must be JSON whatever a worker wrote.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

inline constexpr int kEventSchema = 1;

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
    int pid = 0;  // 0: it could not be started
  };
  Round round{};
  std::string master_addr;
  std::uint16_t master_port = 0;
  std::vector<Worker> workers;
  std::chrono::microseconds since_cause{};  // the job's start, or what ended the round before
  int node_rank = 0;
  int node_count = 1;
  int world_size = 1;  // workers of all nodes
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
  std::optional<rdzv::WorkerFailure> failure;  // why the round before ended
  std::chrono::microseconds lost{};
  std::optional<rdzv::NodeGone> lost_node = {};  // the first that went since the round before
  int nodes_gone = 0;
  int nodes_joined = 0;
  bool was_asked_for = false;  // by a person
};
struct SignalReceived {
  int signal = 0;
};
struct WorkerKilledAfterGrace {
  Round round{};
  RoundStarted::Worker worker;
  std::chrono::microseconds grace{};
};
struct KeeperReplaced {
  int pid = 0;
};
struct JobFinished {
  rdzv::JobOutcome outcome;
  int exit_code = 0;  // the agent's own
  std::chrono::microseconds wall{};
  std::chrono::microseconds lost{};  // to all restarts together
};
struct EventsLost {
  std::uint64_t count = 0;  // the reader was too slow for these
};
struct Requested {        // by a person, of this agent
  std::string_view what;  // stop, restart
};
using JobEvent =
    std::variant<JobStarted, RoundStarted, WorkerExited, RoundStopping, Restarted, SignalReceived,
                 WorkerKilledAfterGrace, KeeperReplaced, JobFinished, EventsLost, Requested>;

struct EventHead {
  std::chrono::system_clock::time_point time;
  std::chrono::steady_clock::time_point monotonic;
  std::string job;
  std::string host;
};

// One JSON object and a newline.
std::string event_line(const EventHead& head, const JobEvent& event);

// Only what its line shows: for who keeps events. A failure may bring 64 KiB of text and as much of
// stderr along, and the line has 4 KiB of it.
JobEvent without_what_no_line_shows(JobEvent event);

}  // namespace ddprun::agent
