// What one agent has to do, as one value: the part of the launcher's Plan that the agent needs. The
// launcher decides every value before it starts a process; --dry-run prints them, tests compare
// them.
#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/leader_spec.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::agent {

// The program that every worker runs.
struct Program {
  std::string path;               // for execve: contains a '/', exists, is executable
  std::vector<std::string> argv;  // argv[0] included
  // Index of the user's first argument. In the user's arguments ${local_rank}, $local_rank and $$
  // are replaced for each worker (torchrun's string.Template rules). argv.size(): replace nothing.
  std::size_t first_user_argument = 1;
  std::string name;        // for messages: the script, module or program as the user typed it
  bool is_python = false;  // argv begins with a Python and its option -u
  std::size_t python_options = 1;  // a Python's: -u, and the options in the script's first line
};

// The streams of a worker that an output option applies to; torchrun's digits.
enum class StreamSet { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };

// Where the workers' output goes; agent/output/output.h describes the effect.
struct OutputSpec {
  std::string log_dir;                     // --log-dir; empty: not given
  StreamSet redirects = StreamSet::kNone;  // -r, for ranks that redirects_of does not list
  std::map<int, StreamSet> redirects_of;   // -r 0:1,3:2 by local rank
  StreamSet tee = StreamSet::kNone;        // -t, for ranks that tee_of does not list
  std::map<int, StreamSet> tee_of;         // -t, by local rank
  std::vector<int> local_ranks_filter;     // the console shows only these; empty: all
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  std::optional<std::string> line_prefix_template;  // with ${role_name} and others
  std::size_t stderr_tail_lines = 20;               // kept per worker for the failure report

  bool operator==(const OutputSpec&) const = default;
};

// Address and ports of the store through which the workers of a round meet.
struct StoreEndpoint {
  // MASTER_ADDR as given, where the store also listens. Empty (several nodes): found at run time.
  std::string address = "127.0.0.1";
  std::uint16_t first_port = 0;   // the store listens on a free port from first_port to last_port;
  std::uint16_t last_port = 0;    // equal: on exactly this port; both 0: the kernel chooses
  bool agent_hosts_store = true;  // false: rank 0 does, on a port that the agent reserves for it
  std::size_t store_memory = rdzv::limits::kDefaultStoreMemory;  // memory limit in bytes

  bool operator==(const StoreEndpoint&) const = default;
};

// The nodes of the job, and how this one finds their leader.
struct Nodes {
  rdzv::LeaderSpec leader;
  int min_nodes = 1;
  int max_nodes = 1;
  std::optional<int> node_rank;    // that this node asks for; none: the leader chooses
  bool has_exact_ranks = false;    // static: node ranks are unique and below max_nodes
  bool shares_store_port = false;  // static: workers find the store at the leader's port
  std::string local_addr;          // address for this node's workers; empty: found at run time
  std::chrono::milliseconds last_call_timeout{30'000};
  std::chrono::milliseconds replace_timeout{30'000};

  bool is_alone() const { return leader.where == rdzv::LeaderSpec::Where::kAlone; }

  bool operator==(const Nodes&) const = default;
};

// Where the event log goes, one JSON line per event.
struct EventSpec {
  std::string file;               // empty: no file
  std::optional<int> descriptor;  // inherited, open for writing; 1 for "-"
  bool as_torchrun = false;       // also torchrun's records on stderr (--event-log-handler=console)
  std::string rdzv_backend = "static";  // the name in torchrun's records
  std::string command;                  // --on-event; empty: none

  bool operator==(const EventSpec&) const = default;
};

// Processes that wait to become workers at a restart (agent/core/standby_core.h).
struct StandbySpec {
  int wanted = 0;                    // how many are to wait; 0: none
  bool is_program = false;           // the program itself forks them, in its Context; else Python
  std::vector<std::string> modules;  // Python's, to load in advance; the first matters most
  // The first round's workers come from the zygote, too: one import instead of one for each.
  bool starts_first = false;
  std::string why_none;  // where the user asked for some: a sentence without its full stop
  // Where the program can recover, one for each worker also makes the program's set-up, to take the
  // place of that worker when it dies (agent/core/standby_core.h).
  bool prepares = false;

  bool operator==(const StandbySpec&) const = default;
};

// What makes a wait a verdict, and what follows one (rendezvous/round/hang_core.h).
struct HangSpec {
  rdzv::HangTimeout timeout;
  bool restarts = false;  // --on-hang=restart: who hangs is killed

  bool operator==(const HangSpec&) const = default;
};

// --keep-memory: the memory for snapshots outlives the agent, for the next one of the job.
struct KeepMemorySpec {
  std::chrono::milliseconds time{};  // 0: it does not
  std::string program{};             // absolute path of program or script, or the module's name

  bool operator==(const KeepMemorySpec&) const = default;
};

// --preempt-notice: what is asked whether this machine is about to be taken back (agent/notice).
struct NoticeSpec {
  enum class From { kNowhere, kAws, kGcp, kAzure, kCommand };
  From from = From::kNowhere;
  std::string command{};  // kCommand: for the shell

  static constexpr std::array<std::string_view, 5> kNames{"", "aws", "gcp", "azure", "command"};
  std::string_view name() const { return kNames[static_cast<std::size_t>(from)]; }

  bool operator==(const NoticeSpec&) const = default;
};

struct Job {
  std::string run_id = "none";
  std::string role = "default";
  int local_world_size = 1;
  Nodes nodes;
  rdzv::RestartRules restarts;
  StoreEndpoint store_endpoint;
  Program program;
  Environment environment;  // the launcher's own, which workers inherit
  OutputSpec output;
  EventSpec events;
  // Where metrics are served: a numeric address, on which other machines can read them unless it is loopback; port 0: any
  // free one. None: nowhere.
  std::optional<rdzv::Endpoint> metrics;
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  // The same after a worker failed or a node was lost, at most shutdown_timeout; none: NodeCore decides by what the
  // workers do.
  std::optional<std::chrono::milliseconds> failure_shutdown_timeout;
  // Signals to the agent that stop the job, except those ignored when it starts (nohup).
  std::vector<int> stop_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::optional<int> preempt_signal;  // asks the workers to leave; the exit code then means requeue
  NoticeSpec preempt_notice;          // as well
  std::string health_check;  // --health-check: "auto", or a command for the shell; empty: none
  // --virtual-local-rank: LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES (on ROCm also
  // HIP_VISIBLE_DEVICES) is the entry of its local rank here. Empty: the option is not set.
  std::vector<std::string> visible_devices_of;
  std::vector<std::vector<int>> cpus_of;  // by local rank, for sched_setaffinity; empty: not bound
  bool exit_code_as_torchrun = false;     // 1 for any failure
  bool kills_orphans = false;             // also after success
  std::string record;                     // --record: file for the cores' inputs; empty: none
  std::string version;                    // of this ddprun, for messages
  StandbySpec standbys;
  HangSpec hangs;
  bool stops_for_nan = false;    // --on-nan=stop
  bool finds_slow_ranks = true;  // --slow-ranks=report
  KeepMemorySpec keep_memory;
  std::vector<int> debugged_ranks;  // global ranks that wait for a debugger, in every round

  // The exit code of this agent for an outcome that has this one.
  int exit_code(int of_outcome) const {
    return of_outcome != 0 && exit_code_as_torchrun ? 1 : of_outcome;
  }
};

}  // namespace ddprun::agent
