#include "launcher/cli/option_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "launcher/cli/text.h"

namespace ddprun::cli {
namespace {

using enum OptionId;
using enum Kind;
using enum Variables;

constexpr std::array<OptionSpec, kOptionCount> kTable{{
    {kNprocPerNode, "nproc-per-node", "N|auto|cpu|gpu|xpu", "1",
     "workers on this node: a number; gpu, one for each visible GPU of NVIDIA or AMD; xpu, of "
     "Intel; cpu, one for each CPU that affinity allows; usable-cpus, cpu or fewer if a cgroup's "
     "quota is lower; auto, one for each device of the accelerator if there is one, else cpu"},
    {kRole, "role", "NAME", "default",
     "role of the workers, for ROLE_NAME and the prefix of their output"},
    {kMaxRestarts, "max-restarts", "N[/TIME]", "0",
     "how often the group is started again after a worker has failed; with a time, as in 3/1h, "
     "within that time"},
    {kNoProgressRestarts, "no-progress-restarts", "K", "0",
     "end the job, with exit code 116, that has restarted so often in a row without a step more "
     "than before; 0: never",
     kValue, kOwn},
    {kMinUptime, "min-uptime", "SECONDS", "0",
     "if a worker fails sooner than this after the start of its group, the job ends, whatever "
     "--max-restarts says",
     kValue, kOwn},
    {kRestartPause, "restart-pause", "FIRST[:MAX]", "0",
     "seconds between a failure and the next start; doubled up to MAX as long as groups fail "
     "within 10 seconds",
     kValue, kOwn},
    {kFinalExitCodes, "final-exit-codes", "CODE,...", "",
     "exit codes of workers, or signals, after which the group is not started again, as in "
     "2,SIGSEGV",
     kList, kOwn},
    {kHangTimeout, "hang-timeout", "SECONDS|auto|off", "off",
     "how long ranks may wait for another one before it is taken to hang, also without a proof; "
     "auto, ten times the longest wait that this job has seen, at least 60, and never before the "
     "first step, which is reported, and nothing is killed for it",
     kValue, kOwn},
    {kOnHang, "on-hang", "ACTION", "report",
     "what follows when a rank hangs: report says who it is, in which call, with its stack; "
     "restart kills "
     "it as well, which counts as its failure",
     kValue, kOwn, '\0', "report|restart"},
    {kOnNan, "on-nan", "ACTION", "report",
     "what follows when a value that the program reports, such as its loss, is NaN or infinite: "
     "report says "
     "which rank, value and step; stop ends the job on all nodes as well, with exit code 116 and "
     "without a restart",
     kValue, kOwn, '\0', "report|stop"},
    {kSlowRanks, "slow-ranks", "ACTION", "report",
     "what follows when a rank comes last to the collectives of most steps for a minute: report "
     "says "
     "who it is, how late it comes, and in which line of a Python program it spends the time; off, "
     "it is not looked for",
     kValue, kOwn, '\0', "report|off"},
    {kStandby, "standby", "off|auto|N", "off",
     "processes on this node that wait with PyTorch loaded and become workers at a restart (in "
     "Python, where they are as many as the workers, at the start, too), of programs run by Python "
     "or linked with worker_lib; auto, one for each worker if there can be restarts; where "
     "the program can recover, one more for each worker takes its place when it dies (with auto "
     "not where there is a GPU, whose memory it needs)",
     kValue, kOwn},
    {kPreload, "preload", "MODULE,...", "",
     "Python modules that the processes of --standby load in advance, beside PyTorch's and those "
     "of "
     "well-known packages that the script imports",
     kList, kOwn},
    {kKeepMemory, "keep-memory", "SECONDS", "0",
     "how long the workers' snapshots in memory outlive this ddprun, unless the job has succeeded, "
     "for "
     "the next one of the same --rdzv-id, program and user on this node; 0, not at all",
     kValue, kOwn},
    {kStandalone, "standalone", "", "",
     "this node alone, with a random run id, whatever the options under Nodes say", kFlag},
    {kModule, "module", "", "", "the program is a Python module: python -u -m", kFlag, kPetAndOwn,
     'm'},
    {kNoPython, "no-python", "", "", "execute the program itself, also if it is a Python script",
     kFlag},
    {kRunPath, "run-path", "", "",
     "run the script by runpy inside a Python that records its exception", kFlag},
    {kAsTorchrun, "as-torchrun", "", "",
     "execute a command as a shell would; for all that it starts torchrun is ddprun, with the "
     "other options here as variables: ddprun --as-torchrun -- accelerate launch train.py",
     kFlag, kNone},
    {kUseEnv, "use-env", "", "",
     "turns --local-rank-arg off, as for torch.distributed.launch; every worker has LOCAL_RANK in "
     "its environment, with and without this option",
     kFlag, kNone},
    {kLocalRankArg, "local-rank-arg", "", "",
     "give each worker --local-rank=N as its first argument, as torch.distributed.launch does, for "
     "older scripts that read no LOCAL_RANK",
     kFlag, kOwn},
    {kStartMethod, "start-method", "METHOD", "spawn",
     "accepted for compatibility with torchrun; every worker is a process of its own", kValue,
     kPetAndOwn, '\0', "spawn|fork|forkserver"},
    {kVirtualLocalRank, "virtual-local-rank", "", "",
     "each worker sees LOCAL_RANK=0 and only its own GPU", kFlag},
    {kNumaBinding, "numa-binding", "MODE", "",
     "bind each worker to the CPUs near its GPU: those of its NUMA node, of its socket, an equal "
     "share of the node's cores, or cores that share a cache",
     kValue, kPetAndOwn, '\0', "node|socket|exclusive|core-complex"},
    {kAttachDebugger, "attach-debugger", "RANK,...", "",
     "these ranks of the job wait before their first instruction, in every round; the command that "
     "attaches a debugger is printed",
     kList, kOwn},
    {kLogDir, "log-dir", "DIR", "", "folder for the workers' log files (/dev/null: no files)"},
    {kRedirects, "redirects", "SPEC", "0",
     "streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; for all "
     "workers, or by local rank as in 0:3,1:2",
     kRankMap, kPetAndOwn, 'r'},
    {kTee, "tee", "SPEC", "0",
     "streams that go to files and, with a prefix, to the console, as for --redirects", kRankMap,
     kPetAndOwn, 't'},
    {kLocalRanksFilter, "local-ranks-filter", "RANK,...", "",
     "show only these local ranks on the console", kList},
    {kLogLinePrefixTemplate, "log-line-prefix-template", "TEXT", "",
     "prefix of teed lines, with ${role_name}, ${rank}, ${local_rank} and ${hostname}; without "
     "--tee it makes lines of the console have one, too",
     kValue, kPetAndOwn, '\0', "", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {kDuplicateStdoutFilters, "duplicate-stdout-filters", "TEXT,...", "",
     "teed stdout lines that contain one of these also go to filtered_stdout.log (,, is a comma)",
     kEscapedList},
    {kDuplicateStderrFilters, "duplicate-stderr-filters", "TEXT,...", "",
     "the same for stderr and filtered_stderr.log", kEscapedList},
    {kLogsSpecs, "logs-specs", "NAME", "",
     "accepted for compatibility with torchrun; only 'default' exists"},
    {kEvents, "events", "FILE|fd:N|-", "",
     "write what happens as JSON lines to a file, an open descriptor, or stdout", kValue, kOwn},
    {kOnEvent, "on-event", "CMD", "",
     "run a command of the shell when something happens, with JSON lines as of --events on its "
     "stdin; on the first node, one run at a time and at most one a second",
     kValue, kOwn},
    {kRecord, "record", "FILE", "", "record the input of this node's decisions, for ddpctl replay",
     kValue, kOwn},
    {kEventLogHandler, "event-log-handler", "NAME", "null",
     "console: torchrun's event records on stderr", kValue, kPetAndOwn, '\0',
     "null|console|dynamic_rendezvous"},
    {kMetricsPort, "metrics-port", "PORT", "",
     "serve Prometheus metrics at /metrics, /healthz and /livez for probes, and a live page at / "
     "on this port; 0: a free port, which is printed",
     kValue, kOwn},
    {kMetricsAddress, "metrics-address", "ADDRESS", "127.0.0.1",
     "where --metrics-port listens: 0.0.0.0 or an address of this machine lets all other machines "
     "that reach it read metrics and health, without the page",
     kValue, kOwn},
    {kSignalsToHandle, "signals-to-handle", "NAME,...", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     "signals that stop the job; they are passed on to the workers", kList},
    {kPreemptSignal, "preempt-signal", "NAME", "",
     "signal by which the scheduler announces a preemption: workers that ask for it "
     "(should_leave) or handle it leave at the next step, and the exit code 113 asks for a "
     "requeue; "
     "others run on; SIGUSR1 under Slurm",
     kValue, kOwn},
    {kPreemptNotice, "preempt-notice", "aws|gcp|azure|CMD", "",
     "ask the metadata service of a cloud every 5 seconds whether this instance is about to be "
     "taken back, or run a command, for which exit code 0 and a line on stdout mean yes; then as "
     "after --preempt-signal",
     kValue, kOwn},
    {kHealthCheck, "health-check", "auto|CMD", "",
     "check that this node is fit before it joins, every 5 minutes, and after a failure of its "
     "workers before they restart: auto looks at GPUs, InfiniBand, /dev/shm and the job's folders; "
     "a command says by its exit code whether the node is fit (0), and by its last line why not",
     kValue, kOwn},
    {kShutdownTimeout, "shutdown-timeout", "SECONDS", "30",
     "time from the stop signal until workers are killed", kValue, kPetAndOwn, '\0', "",
     "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {kFailureShutdownTimeout, "failure-shutdown-timeout", "SECONDS", "",
     "the same after a worker has failed or a node was lost, when no collective can complete, for "
     "every worker; by default a worker that handles SIGTERM has --shutdown-timeout while it is "
     "outside of collectives, any other 1 s, or 5 s if it has a GPU open",
     kValue, kOwn},
    {kKillOrphans, "kill-orphans", "", "",
     "also after success, kill what workers left running outside of their process groups (setsid)",
     kFlag, kOwn},
    {kExitBarrierTimeout, "exit-barrier-timeout", "SECONDS", "300",
     "accepted for compatibility with torchrun; nodes end together without a timed barrier", kValue,
     kOwn, '\0', "", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"},
    {kMonitorInterval, "monitor-interval", "SECONDS", "0.1",
     "accepted for compatibility with torchrun; a worker's end is noticed at once"},
    {kExitCode, "exit-code", "RULE", "worker",
     "exit code of a failed job: that of the worker that failed first (128 + signal), or "
     "torchrun's 1",
     kValue, kOwn, '\0', "worker|torchrun"},
    {kNnodes, "nnodes", "N|MIN:MAX", "1:1",
     "number of nodes; with c10d and etcd the job continues with any number from MIN to MAX"},
    {kNodeRank, "node-rank", "N", "0",
     "rank of this node; static: exactly this one, and node 0 leads; c10d, etcd: the order of "
     "nodes, if given"},
    {kMasterAddr, "master-addr", "HOST", "127.0.0.1", "static: address of node 0, and MASTER_ADDR"},
    {kMasterPort, "master-port", "PORT", "29500",
     "static: port of node 0, and MASTER_PORT; on a single node a free port unless this is given"},
    {kMasterPortRange, "master-port-range", "FIRST:LAST", "",
     "take MASTER_PORT from this range, for sites with a firewall; not with static on several "
     "nodes",
     kValue, kOwn},
    {kStoreMemory, "store-memory", "MIB", "1024",
     "the most that the store of a round may hold, in MiB", kValue, kOwn},
    {kRdzvBackend, "rdzv-backend", "NAME", "static",
     "how nodes find each other: static, c10d, etcd-v2 or etcd"},
    {kRdzvEndpoint, "rdzv-endpoint", "HOST[:PORT]", "",
     "where nodes meet, the same on every node; c10d: the node with this address leads; etcd: "
     "HOST:PORT,HOST:PORT,... of its members"},
    {kRdzvId, "rdzv-id", "ID", "none",
     "name of the job, the same on every node; TORCHELASTIC_RUN_ID"},
    {kRdzvConf, "rdzv-conf", "KEY=VALUE,...", "",
     "more settings: join_timeout (static: timeout), last_call_timeout, replace_timeout, "
     "keep_alive_interval in seconds; keep_alive_max_attempt; reconnect_grace in milliseconds; "
     "is_host; token_file; etcd: lease_time in seconds, etcd_prefix, protocol, ca_cert, cert, key, "
     "user, password_file",
     kPairs},
    {kLocalAddr, "local-addr", "HOST", "", "address by which other nodes reach this one"},
    {kTokenFile, "token-file", "FILE", "",
     "nodes must know the secret in this file to take part; the secret is never sent", kValue,
     kOwn},
    {kNoToken, "no-token", "", "",
     "let every host take part that reaches the leader's port, without the line that says so",
     kFlag, kOwn},
    {kConfig, "config", "FILE", "", "read settings from a TOML file: option names as keys", kValue,
     kOwn},
    {kDryRun, "dry-run", "", "", "print the plan and where each value comes from; start nothing",
     kFlag, kOwn},
    {kJson, "json", "", "", "with --dry-run: print the plan as JSON", kFlag, kOwn},
    {kPrintCompletion, "print-completion", "SHELL", "", "print the completion script for a shell",
     kValue, kNone, '\0', "bash|zsh|fish"},
    {kPrintManPage, "print-man-page", "", "", "print the man page", kFlag, kNone},
    {kPrintOptionTable, "print-option-table", "", "", "print all options as a Markdown table",
     kFlag, kNone},
    {kHelp, "help", "", "", "print this text", kFlag, kNone, 'h'},
    {kVersion, "version", "", "", "print the version", kFlag, kNone},
}};

constexpr bool is_in_order_of_ids() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(is_in_order_of_ids(), "spec_of() indexes the table by id");

}  // namespace

std::span<const OptionSpec> option_table() { return kTable; }

const OptionSpec& spec_of(OptionId id) { return kTable[static_cast<std::size_t>(id)]; }

// A row for each group: the first of its options.
std::string_view group_begun_by(OptionId id) {
  constexpr std::pair<OptionId, std::string_view> kGroups[] = {
      {kNprocPerNode, "Job"}, {kModule, "Program"},
      {kLogDir, "Output"},    {kSignalsToHandle, "Signals and the end"},
      {kNnodes, "Nodes"},     {kConfig, "Information"}};
  const auto* const found =
      std::ranges::find(kGroups, id, &std::pair<OptionId, std::string_view>::first);
  return found == std::end(kGroups) ? "" : found->second;
}

std::vector<std::string> variables_of(const OptionSpec& spec) {
  std::string upper;
  for (const char c : spec.name) {
    upper += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  std::vector<std::string> variables;
  if (spec.variables != Variables::kNone) variables.push_back("DDPRUN_" + upper);
  if (spec.variables == Variables::kPetAndOwn) variables.push_back("PET_" + upper);
  if (!spec.more_variable.empty()) variables.emplace_back(spec.more_variable);
  return variables;
}

std::vector<std::string_view> choices_of(const OptionSpec& spec) {
  return spec.choices.empty() ? std::vector<std::string_view>{} : split(spec.choices, '|');
}

std::string dashed(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return text;
}

const OptionSpec* find_option(std::string_view name) {
  const auto found = std::ranges::find(kTable, dashed(name), &OptionSpec::name);
  return found == kTable.end() ? nullptr : &*found;
}

const OptionSpec* find_option(char letter) {
  const auto found = std::ranges::find(kTable, letter, &OptionSpec::letter);
  return letter == '\0' || found == kTable.end() ? nullptr : &*found;
}

}  // namespace ddprun::cli
