// Every option of ddprun, once. Parsing, resolution, --help, the man page, the completions and the
// README's table are made from this table, so an option that is here is everywhere and is spelled
// the same. Constant data; any thread. The mistake to avoid: giving a default anywhere else.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

enum class OptionId {
  kNprocPerNode,
  kStandalone,
  kMaxRestarts,
  kLogDir,
  kRedirects,
  kTee,
  kDryRun,
  kHelp,
  kVersion,
};

inline constexpr std::size_t kOptionCount = static_cast<std::size_t>(OptionId::kVersion) + 1;

enum class Group { kJob, kOutput, kInformation };

enum class Kind { kFlag, kValue };

// Which environment variables stand for the option: torchrun's PET_<NAME> and our DDPRUN_<NAME>,
// only ours (torchrun has no such option), or none (it makes sense on a command line only).
enum class Variables { kPetAndOwn, kOwn, kNone };

struct OptionSpec {
  OptionId id;
  std::string_view name;  // with dashes, without the leading "--"
  char letter;            // short spelling; '\0': none
  Kind kind;
  std::string_view value_name;    // as help shows it; empty for a flag
  std::string_view default_text;  // as if typed; a flag's is empty
  Group group;
  Variables variables;
  std::string_view help;  // one sentence, no full stop; the default is added by whoever prints it
};

std::span<const OptionSpec> option_table();
const OptionSpec& spec_of(OptionId id);
std::string_view title_of(Group group);

// The environment variables that stand for an option, the one that wins first.
std::vector<std::string> variables_of(const OptionSpec& spec);

// By name as typed after "--": underscores count as dashes; exact only.
const OptionSpec* find_option(std::string_view name);
const OptionSpec* find_option(char letter);

}  // namespace ddprun::cli
