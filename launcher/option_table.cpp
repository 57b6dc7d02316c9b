#include "launcher/option_table.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cctype>

namespace ddprun::cli {
namespace {

constexpr std::array<OptionSpec, kOptionCount> kTable{{
    {OptionId::kNprocPerNode, "nproc-per-node", '\0', Kind::kValue, "N|auto|cpu|gpu", "1",
     Group::kJob, Variables::kPetAndOwn,
     "workers on this node: a number, one per GPU (gpu), one per CPU (cpu), or auto"},
    {OptionId::kStandalone, "standalone", '\0', Kind::kFlag, "", "", Group::kJob,
     Variables::kPetAndOwn, "one node, a port of its own, a random run id"},
    {OptionId::kMaxRestarts, "max-restarts", '\0', Kind::kValue, "N", "0", Group::kJob,
     Variables::kPetAndOwn, "how often a failed group of workers is started again"},
    {OptionId::kLogDir, "log-dir", '\0', Kind::kValue, "DIR", "", Group::kOutput,
     Variables::kPetAndOwn, "where the workers' log files go"},
    {OptionId::kRedirects, "redirects", 'r', Kind::kValue, "SPEC", "0", Group::kOutput,
     Variables::kPetAndOwn,
     "streams written to files instead of the console: 0 none, 1 stdout, 2 stderr, 3 both, or by "
     "local rank, 0:3,1:2"},
    {OptionId::kTee, "tee", 't', Kind::kValue, "SPEC", "0", Group::kOutput, Variables::kPetAndOwn,
     "streams written to files and to the console, as for --redirects"},
    {OptionId::kDryRun, "dry-run", '\0', Kind::kFlag, "", "", Group::kInformation, Variables::kOwn,
     "print the plan and where each value came from; start nothing"},
    {OptionId::kHelp, "help", 'h', Kind::kFlag, "", "", Group::kInformation, Variables::kNone,
     "print this text"},
    {OptionId::kVersion, "version", '\0', Kind::kFlag, "", "", Group::kInformation,
     Variables::kNone, "print the version"},
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
    case Group::kOutput:
      return "Output";
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
  switch (spec.variables) {
    case Variables::kPetAndOwn:
      return {"DDPRUN_" + upper, "PET_" + upper};
    case Variables::kOwn:
      return {"DDPRUN_" + upper};
    case Variables::kNone:
      return {};
  }
  return {};
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
