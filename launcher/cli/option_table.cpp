#include "launcher/cli/option_table.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cctype>

#include "launcher/cli/text.h"

namespace ddprun::cli {
namespace {

constexpr std::array<OptionSpec, kOptionCount> kTable{{
    {.id = OptionId::kNprocPerNode,
     .name = "nproc-per-node",
     .value_name = "N|auto|cpu|gpu",
     .default_text = "1",
     .group = Group::kJob,
     .help = "workers on this node: a number; gpu, one for each visible GPU; cpu, one for each "
             "CPU; usable-cpus, one for each CPU that affinity and cgroup allow; auto, gpu if "
             "there is one, else cpu"},
    {.id = OptionId::kRole,
     .name = "role",
     .value_name = "NAME",
     .default_text = "default",
     .group = Group::kJob,
     .help = "role of the workers, for ROLE_NAME and the prefix of their output"},
    {.id = OptionId::kMaxRestarts,
     .name = "max-restarts",
     .value_name = "N",
     .default_text = "0",
     .group = Group::kJob,
     .help = "how often the group is started again after a worker has failed"},
    {.id = OptionId::kMinUptime,
     .name = "min-uptime",
     .value_name = "SECONDS",
     .default_text = "0",
     .group = Group::kJob,
     .variables = Variables::kOwn,
     .help = "if a worker fails sooner than this after the start of its group, the job ends, "
             "whatever --max-restarts says"},
    {.id = OptionId::kRestartPause,
     .name = "restart-pause",
     .value_name = "FIRST[:MAX]",
     .default_text = "0",
     .group = Group::kJob,
     .variables = Variables::kOwn,
     .help = "seconds between a failure and the next start; doubled up to MAX as long as groups "
             "fail within 10 seconds"},
    {.id = OptionId::kFinalExitCodes,
     .name = "final-exit-codes",
     .kind = Kind::kList,
     .value_name = "CODE,...",
     .group = Group::kJob,
     .variables = Variables::kOwn,
     .help = "exit codes of workers, or signals, after which the group is not started again, as in "
             "2,SIGSEGV"},
    {.id = OptionId::kStandalone,
     .name = "standalone",
     .kind = Kind::kFlag,
     .group = Group::kJob,
     .help = "this node alone, with a random run id, whatever the options under Nodes say"},
    {.id = OptionId::kModule,
     .name = "module",
     .letter = 'm',
     .kind = Kind::kFlag,
     .group = Group::kProgram,
     .help = "the program is a Python module: python -u -m"},
    {.id = OptionId::kNoPython,
     .name = "no-python",
     .kind = Kind::kFlag,
     .group = Group::kProgram,
     .help = "execute the program itself, also if it is a Python script"},
    {.id = OptionId::kRunPath,
     .name = "run-path",
     .kind = Kind::kFlag,
     .group = Group::kProgram,
     .help = "run the script by runpy inside a Python that records its exception"},
    {.id = OptionId::kUseEnv,
     .name = "use-env",
     .kind = Kind::kFlag,
     .group = Group::kProgram,
     .variables = Variables::kNone,
     .help = "accepted for compatibility with torch.distributed.launch; every worker has "
             "LOCAL_RANK in its environment"},
    {.id = OptionId::kStartMethod,
     .name = "start-method",
     .value_name = "METHOD",
     .default_text = "spawn",
     .choices = "spawn|fork|forkserver",
     .group = Group::kProgram,
     .help = "accepted for compatibility with torchrun; every worker is a process of its own"},
    {.id = OptionId::kVirtualLocalRank,
     .name = "virtual-local-rank",
     .kind = Kind::kFlag,
     .group = Group::kProgram,
     .help = "each worker sees LOCAL_RANK=0 and only its own GPU"},
    {.id = OptionId::kNumaBinding,
     .name = "numa-binding",
     .value_name = "MODE",
     .choices = "node|socket|exclusive|core-complex",
     .group = Group::kProgram,
     .help = "bind each worker to the CPUs near its GPU: those of its NUMA node, of its socket, an "
             "equal share of the node's cores, or cores that share a cache"},
    {.id = OptionId::kAttachDebugger,
     .name = "attach-debugger",
     .kind = Kind::kList,
     .value_name = "RANK,...",
     .group = Group::kProgram,
     .variables = Variables::kOwn,
     .help = "these ranks of the job wait before their first instruction, in every round; the "
             "command that attaches a debugger is printed"},
    {.id = OptionId::kLogDir,
     .name = "log-dir",
     .value_name = "DIR",
     .group = Group::kOutput,
     .help = "folder for the workers' log files (/dev/null: no files)"},
    {.id = OptionId::kRedirects,
     .name = "redirects",
     .letter = 'r',
     .kind = Kind::kRankMap,
     .value_name = "SPEC",
     .default_text = "0",
     .group = Group::kOutput,
     .help = "streams that go to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both; "
             "for all workers, or by local rank as in 0:3,1:2"},
    {.id = OptionId::kTee,
     .name = "tee",
     .letter = 't',
     .kind = Kind::kRankMap,
     .value_name = "SPEC",
     .default_text = "0",
     .group = Group::kOutput,
     .help = "streams that go to files and, with a prefix, to the console, as for --redirects"},
    {.id = OptionId::kLocalRanksFilter,
     .name = "local-ranks-filter",
     .kind = Kind::kList,
     .value_name = "RANK,...",
     .group = Group::kOutput,
     .help = "show only these local ranks on the console"},
    {.id = OptionId::kLogLinePrefixTemplate,
     .name = "log-line-prefix-template",
     .value_name = "TEXT",
     .group = Group::kOutput,
     .variables = Variables::kOwn,
     .more_variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
     .help = "prefix of teed lines, with ${role_name}, ${rank} and ${local_rank}"},
    {.id = OptionId::kDuplicateStdoutFilters,
     .name = "duplicate-stdout-filters",
     .kind = Kind::kEscapedList,
     .value_name = "TEXT,...",
     .group = Group::kOutput,
     .help = "teed stdout lines that contain one of these also go to filtered_stdout.log (,, is a "
             "comma)"},
    {.id = OptionId::kDuplicateStderrFilters,
     .name = "duplicate-stderr-filters",
     .kind = Kind::kEscapedList,
     .value_name = "TEXT,...",
     .group = Group::kOutput,
     .help = "the same for stderr and filtered_stderr.log"},
    {.id = OptionId::kLogsSpecs,
     .name = "logs-specs",
     .value_name = "NAME",
     .group = Group::kOutput,
     .help = "accepted for compatibility with torchrun; only 'default' exists"},
    {.id = OptionId::kEvents,
     .name = "events",
     .value_name = "FILE|fd:N|-",
     .group = Group::kOutput,
     .variables = Variables::kOwn,
     .help = "write what happens as JSON lines to a file, an open descriptor, or stdout"},
    {.id = OptionId::kRecord,
     .name = "record",
     .value_name = "FILE",
     .group = Group::kOutput,
     .variables = Variables::kOwn,
     .help = "record the input of this node's decisions, for ddpctl replay"},
    {.id = OptionId::kEventLogHandler,
     .name = "event-log-handler",
     .value_name = "NAME",
     .default_text = "null",
     .choices = "null|console|dynamic_rendezvous",
     .group = Group::kOutput,
     .help = "console: torchrun's event records on stderr"},
    {.id = OptionId::kMetricsPort,
     .name = "metrics-port",
     .value_name = "PORT",
     .group = Group::kOutput,
     .variables = Variables::kOwn,
     .help = "serve Prometheus metrics at /metrics and a live page at / on this port of 127.0.0.1; "
             "0: a free port, which is printed"},
    {.id = OptionId::kSignalsToHandle,
     .name = "signals-to-handle",
     .kind = Kind::kList,
     .value_name = "NAME,...",
     .default_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     .group = Group::kEnd,
     .help = "signals that stop the job; they are passed on to the workers"},
    {.id = OptionId::kPreemptSignal,
     .name = "preempt-signal",
     .value_name = "NAME",
     .group = Group::kEnd,
     .variables = Variables::kOwn,
     .help = "signal by which the scheduler announces a preemption: workers leave at the next "
             "step, and the exit code 113 asks for a requeue; SIGUSR1 under Slurm"},
    {.id = OptionId::kShutdownTimeout,
     .name = "shutdown-timeout",
     .value_name = "SECONDS",
     .default_text = "30",
     .group = Group::kEnd,
     .variables = Variables::kOwn,
     .more_variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
     .help = "time from the stop signal until workers are killed"},
    {.id = OptionId::kFailureShutdownTimeout,
     .name = "failure-shutdown-timeout",
     .value_name = "SECONDS",
     .default_text = "1",
     .group = Group::kEnd,
     .variables = Variables::kOwn,
     .help = "the same after a worker has failed or a node was lost, when no collective can "
             "complete; at most --shutdown-timeout"},
    {.id = OptionId::kExitBarrierTimeout,
     .name = "exit-barrier-timeout",
     .value_name = "SECONDS",
     .default_text = "300",
     .group = Group::kEnd,
     .variables = Variables::kOwn,
     .more_variable = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT",
     .help =
         "accepted for compatibility with torchrun; nodes end together without a timed barrier"},
    {.id = OptionId::kMonitorInterval,
     .name = "monitor-interval",
     .value_name = "SECONDS",
     .default_text = "0.1",
     .group = Group::kEnd,
     .help = "accepted for compatibility with torchrun; a worker's end is noticed at once"},
    {.id = OptionId::kExitCode,
     .name = "exit-code",
     .value_name = "RULE",
     .default_text = "worker",
     .choices = "worker|torchrun",
     .group = Group::kEnd,
     .variables = Variables::kOwn,
     .help = "exit code of a failed job: that of the worker that failed first (128 + signal), or "
             "torchrun's 1"},
    {.id = OptionId::kNnodes,
     .name = "nnodes",
     .value_name = "N|MIN:MAX",
     .default_text = "1:1",
     .group = Group::kNodes,
     .help =
         "number of nodes; with c10d and etcd the job continues with any number from MIN to MAX"},
    {.id = OptionId::kNodeRank,
     .name = "node-rank",
     .value_name = "N",
     .default_text = "0",
     .group = Group::kNodes,
     .help = "rank of this node; static: exactly this one, and node 0 leads; c10d, etcd: the order "
             "of nodes, if given"},
    {.id = OptionId::kMasterAddr,
     .name = "master-addr",
     .value_name = "HOST",
     .default_text = "127.0.0.1",
     .group = Group::kNodes,
     .help = "static: address of node 0, and MASTER_ADDR"},
    {.id = OptionId::kMasterPort,
     .name = "master-port",
     .value_name = "PORT",
     .default_text = "29500",
     .group = Group::kNodes,
     .help = "static: port of node 0, and MASTER_PORT; on a single node a free port unless this is "
             "given"},
    {.id = OptionId::kMasterPortRange,
     .name = "master-port-range",
     .value_name = "FIRST:LAST",
     .group = Group::kNodes,
     .variables = Variables::kOwn,
     .help = "take MASTER_PORT from this range, for sites with a firewall; not with static on "
             "several nodes"},
    {.id = OptionId::kStoreMemory,
     .name = "store-memory",
     .value_name = "MIB",
     .default_text = "1024",
     .group = Group::kNodes,
     .variables = Variables::kOwn,
     .help = "the most that the store of a round may hold, in MiB"},
    {.id = OptionId::kRdzvBackend,
     .name = "rdzv-backend",
     .value_name = "NAME",
     .default_text = "static",
     .group = Group::kNodes,
     .help = "how nodes find each other: static, c10d, etcd-v2 or etcd"},
    {.id = OptionId::kRdzvEndpoint,
     .name = "rdzv-endpoint",
     .value_name = "HOST[:PORT]",
     .group = Group::kNodes,
     .help = "where nodes meet, the same on every node; c10d: the node with this address leads; "
             "etcd: HOST:PORT,HOST:PORT,... of its members"},
    {.id = OptionId::kRdzvId,
     .name = "rdzv-id",
     .value_name = "ID",
     .default_text = "none",
     .group = Group::kNodes,
     .help = "name of the job, the same on every node; TORCHELASTIC_RUN_ID"},
    {.id = OptionId::kRdzvConf,
     .name = "rdzv-conf",
     .kind = Kind::kPairs,
     .value_name = "KEY=VALUE,...",
     .group = Group::kNodes,
     .help = "more settings: join_timeout (static: timeout), last_call_timeout, "
             "keep_alive_interval in seconds; keep_alive_max_attempt; reconnect_grace in "
             "milliseconds; is_host; token_file; etcd: lease_time in seconds, etcd_prefix, "
             "protocol, ca_cert, cert, key, user, password_file"},
    {.id = OptionId::kLocalAddr,
     .name = "local-addr",
     .value_name = "HOST",
     .group = Group::kNodes,
     .help = "address by which other nodes reach this one"},
    {.id = OptionId::kTokenFile,
     .name = "token-file",
     .value_name = "FILE",
     .group = Group::kNodes,
     .variables = Variables::kOwn,
     .help = "nodes must know the secret in this file to take part; the secret is never sent"},
    {.id = OptionId::kConfig,
     .name = "config",
     .value_name = "FILE",
     .group = Group::kInformation,
     .variables = Variables::kOwn,
     .help = "read settings from a TOML file: option names as keys"},
    {.id = OptionId::kDryRun,
     .name = "dry-run",
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kOwn,
     .help = "print the plan and where each value comes from; start nothing"},
    {.id = OptionId::kJson,
     .name = "json",
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kOwn,
     .help = "with --dry-run: print the plan as JSON"},
    {.id = OptionId::kPrintCompletion,
     .name = "print-completion",
     .value_name = "SHELL",
     .choices = "bash|zsh|fish",
     .group = Group::kInformation,
     .variables = Variables::kNone,
     .help = "print the completion script for a shell"},
    {.id = OptionId::kPrintManPage,
     .name = "print-man-page",
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kNone,
     .help = "print the man page"},
    {.id = OptionId::kPrintOptionTable,
     .name = "print-option-table",
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kNone,
     .help = "print all options as a Markdown table"},
    {.id = OptionId::kHelp,
     .name = "help",
     .letter = 'h',
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kNone,
     .help = "print this text"},
    {.id = OptionId::kVersion,
     .name = "version",
     .kind = Kind::kFlag,
     .group = Group::kInformation,
     .variables = Variables::kNone,
     .help = "print the version"},
}};

constexpr bool is_in_order_of_ids() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<std::size_t>(kTable[i].id) != i) return false;
  }
  return true;
}
static_assert(is_in_order_of_ids(), "spec_of() indexes the table by id");

char dashed(char c) { return c == '_' ? '-' : c; }

}  // namespace

std::span<const OptionSpec> option_table() { return kTable; }

const OptionSpec& spec_of(OptionId id) { return kTable[static_cast<std::size_t>(id)]; }

std::string_view title_of(Group group) {
  switch (group) {
    case Group::kJob:
      return "Job";
    case Group::kProgram:
      return "Program";
    case Group::kOutput:
      return "Output";
    case Group::kEnd:
      return "Signals and the end";
    case Group::kNodes:
      return "Nodes";
    case Group::kInformation:
      return "Information";
  }
  return "";
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

const OptionSpec* find_option(std::string_view name) {
  const auto found = std::ranges::find_if(kTable, [name](const OptionSpec& spec) {
    return std::ranges::equal(spec.name, name, {}, {}, dashed);
  });
  return found == kTable.end() ? nullptr : &*found;
}

const OptionSpec* find_option(char letter) {
  const auto found = std::ranges::find(kTable, letter, &OptionSpec::letter);
  return letter == '\0' || found == kTable.end() ? nullptr : &*found;
}

}  // namespace ddprun::cli
