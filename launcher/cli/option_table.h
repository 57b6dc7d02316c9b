// Every option of ddprun, once. Parsing, resolution, --help, the man page, the completions and the
// table in launcher/README.md are made from this table: an option that is here is everywhere, with
// one spelling. Constant data; any thread. Do not write an option's default anywhere else.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

enum class OptionId {
  kNprocPerNode,
  kRole,
  kMaxRestarts,
  kNoProgressRestarts,
  kMinUptime,
  kRestartPause,
  kFinalExitCodes,
  kHangTimeout,
  kOnHang,
  kOnNan,
  kSlowRanks,
  kStandby,
  kPreload,
  kKeepMemory,
  kStandalone,
  kModule,
  kNoPython,
  kRunPath,
  kAsTorchrun,
  kUseEnv,
  kLocalRankArg,
  kStartMethod,
  kVirtualLocalRank,
  kNumaBinding,
  kAttachDebugger,
  kLogDir,
  kRedirects,
  kTee,
  kLocalRanksFilter,
  kLogLinePrefixTemplate,
  kDuplicateStdoutFilters,
  kDuplicateStderrFilters,
  kLogsSpecs,
  kEvents,
  kOnEvent,
  kRecord,
  kEventLogHandler,
  kMetricsPort,
  kMetricsAddress,
  kSignalsToHandle,
  kPreemptSignal,
  kPreemptNotice,
  kHealthCheck,
  kShutdownTimeout,
  kFailureShutdownTimeout,
  kKillOrphans,
  kExitBarrierTimeout,
  kMonitorInterval,
  kExitCode,
  kNnodes,
  kNodeRank,
  kMasterAddr,
  kMasterPort,
  kMasterPortRange,
  kStoreMemory,
  kRdzvBackend,
  kRdzvEndpoint,
  kRdzvId,
  kRdzvConf,
  kLocalAddr,
  kTokenFile,
  kNoToken,
  kConfig,
  kDryRun,
  kJson,
  kPrintCompletion,
  kPrintManPage,
  kPrintOptionTable,
  kHelp,
  kVersion,
};

inline constexpr std::size_t kOptionCount = static_cast<std::size_t>(OptionId::kVersion) + 1;

// The syntax of a value's text. For lists, pairs and maps the configuration file may use TOML's
// arrays and tables.
enum class Kind {
  kFlag,
  kValue,        // one word or number
  kList,         // a,b,c
  kEscapedList,  // a,b,c where ",," stands for a comma
  kPairs,        // key=value,key=value
  kRankMap,      // rank:digit,rank:digit
};

// Which environment variables set the option: torchrun's PET_<NAME> and our DDPRUN_<NAME>, only
// ours (torchrun has no such option), or none (it makes sense on a command line only).
enum class Variables { kPetAndOwn, kOwn, kNone };

struct OptionSpec {
  OptionId id;
  std::string_view name;          // with dashes, without the leading "--"
  std::string_view value_name;    // as help shows it; empty for a flag
  std::string_view default_text;  // as if typed; a flag's is empty
  std::string_view help;          // one sentence, no full stop; whoever prints it adds the default
  Kind kind = Kind::kValue;
  Variables variables = Variables::kPetAndOwn;
  char letter = '\0';                   // short spelling; '\0': none
  std::string_view choices = "";        // "spawn|fork"; empty: any value
  std::string_view more_variable = "";  // one more environment variable, from other programs
};

std::span<const OptionSpec> option_table();  // in the order of the ids
const OptionSpec& spec_of(OptionId id);

// The title of the group of options that begins with this one; empty: none does.
std::string_view group_begun_by(OptionId id);

// The environment variables that set an option, the most important one first.
std::vector<std::string> variables_of(const OptionSpec& spec);

std::vector<std::string_view> choices_of(const OptionSpec& spec);

std::string dashed(std::string_view name);  // with dashes for underscores

// By the exact name after "--"; underscores count as dashes.
const OptionSpec* find_option(std::string_view name);
const OptionSpec* find_option(char letter);

}  // namespace ddprun::cli
