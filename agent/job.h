// What one agent has to do, as one value: made by the launcher before a process exists (it is the
// part of the Plan that the agent needs), printed by --dry-run, compared by tests. Nothing here is
// a default by accident: every value was decided by the launcher.
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/leader_spec.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::agent {

// The program that every worker runs.
struct Program {
  std::string path;               // what execve gets: holds a '/', exists, is executable
  std::vector<std::string> argv;  // whole, argv[0] included
  // From this index on the arguments are the user's, and ${local_rank}, $local_rank and $$ in them
  // are replaced for each worker (torchrun's string.Template rules). == argv.size(): nothing is
  // replaced.
  std::size_t first_user_argument = 1;
  std::string name;  // for people: the script, module or program as it was typed

  bool operator==(const Program&) const = default;
};

// Which of a worker's streams an output option is about; the digits are torchrun's.
enum class StreamSet { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };

// Where the workers' output goes; what each part means is described in agent/output/output.h.
struct OutputSpec {
  std::string log_dir;                     // --log-dir; empty: none was asked for
  StreamSet redirects = StreamSet::kNone;  // -r, for ranks that redirects_of does not list
  std::map<int, StreamSet> redirects_of;   // -r 0:1,3:2 by local rank
  StreamSet tee = StreamSet::kNone;        // -t
  std::map<int, StreamSet> tee_of;         //
  std::vector<int> local_ranks_filter;     // console shows only these; empty: all
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  std::optional<std::string> line_prefix_template;  // ${role_name} ${rank} ${local_rank}
  std::size_t stderr_tail_lines = 20;               // kept per worker for the failure report

  bool operator==(const OutputSpec&) const = default;
};

// The address and the ports that the workers of a round meet at.
struct StoreEndpoint {
  // MASTER_ADDR as given, also where the store listens; empty, on several nodes only: found out.
  std::string address = "127.0.0.1";
  std::uint16_t first_port = 0;   // the store takes a free one of first_port to last_port;
  std::uint16_t last_port = 0;    // equal: exactly that one; 0: whichever the kernel gives
  bool agent_hosts_store = true;  // false: rank 0 does, at a port that the agent only reserves
  std::size_t store_memory = rdzv::limits::kDefaultStoreMemory;  // that it may hold, in bytes

  bool operator==(const StoreEndpoint&) const = default;
};

// The nodes of the job, and how this one finds their leader.
struct Nodes {
  rdzv::LeaderSpec leader;
  int min_nodes = 1;
  int max_nodes = 1;
  std::optional<int> node_rank;    // that this node asks for
  bool has_exact_ranks = false;    // static: node ranks are unique and below max_nodes
  bool shares_store_port = false;  // static: workers find the store at the leader's port
  std::string local_addr;          // that this node's workers are reached at; empty: found out
  std::chrono::milliseconds last_call_timeout{30'000};

  bool is_alone() const { return leader.where == rdzv::LeaderSpec::Where::kAlone; }

  bool operator==(const Nodes&) const = default;
};

// Where the event log goes, one JSON line per event.
struct EventSpec {
  std::string file;               // empty: no file
  std::optional<int> descriptor;  // an inherited one, open for writing; 1 for "-"
  bool as_torchrun = false;       // also torchrun's records on stderr (--event-log-handler=console)
  std::string rdzv_backend = "static";  // which those name

  bool operator==(const EventSpec&) const = default;
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
  std::optional<std::uint16_t> metrics_port;  // of loopback, 0: any; none: nobody is to watch
  std::chrono::milliseconds shutdown_timeout{30'000};  // from the stop signal to SIGKILL
  // The same when a worker has failed or a node is lost; not more than the other.
  std::chrono::milliseconds failure_shutdown_timeout{1'000};
  // Signals to the agent that stop the job; an inherited "ignore" of SIGHUP is the agent's to
  // respect.
  std::vector<int> stop_signals{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::optional<int> preempt_signal;  // notice to the workers, then exit with the requeue code
  // --virtual-local-rank: LOCAL_RANK is 0 for every worker, and CUDA_VISIBLE_DEVICES is the entry
  // here at its local rank. Empty: both as usual.
  std::vector<std::string> visible_devices_of;
  std::vector<std::vector<int>> cpus_of;  // by local rank, for sched_setaffinity; empty: not bound
  bool exit_code_as_torchrun = false;     // 1 for any failure
  std::string record;                     // file for what the cores are told; empty: none
  std::string version;                    // of this ddprun, for people
  std::vector<int> debugged_ranks;  // of the whole job; each waits for a debugger, in every round

  bool operator==(const Job&) const = default;
};

}  // namespace ddprun::agent
