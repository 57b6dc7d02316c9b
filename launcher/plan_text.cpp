#include "launcher/plan_text.h"

#include <algorithm>

namespace ddprun::cli {
namespace {

// As a shell would read it back.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

void append_row(std::string& out, std::string_view name, std::string_view value,
                std::string_view origin) {
  constexpr std::size_t kValueColumn = 22;
  constexpr std::size_t kOriginColumn = 50;
  std::string row = "  " + std::string(name);
  row.resize(std::max(row.size() + 1, kValueColumn), ' ');
  row += value;
  row.resize(std::max(row.size() + 2, kOriginColumn), ' ');
  out += row + std::string(origin) + "\n";
}

}  // namespace

std::string to_table(const Plan& plan) {
  const agent::Job& job = plan.job;
  std::string out = "Program\n  " + job.program.path + "\n  ";
  for (const std::string& argument : job.program.argv) out += quoted(argument) + " ";
  out.back() = '\n';
  out += "\nWorkers on this node: " + std::to_string(job.local_world_size) + "\n\nSettings\n";
  for (const OptionSpec& spec : option_table()) {
    if (spec.group == Group::kInformation) continue;
    const Setting& setting = plan.settings[spec.id];
    append_row(out, spec.name, setting.text.empty() ? "-" : setting.text,
               to_string(setting.origin));
  }
  if (!plan.notes.empty()) out += "\nNotes\n";
  for (const std::string& note : plan.notes) out += "  " + note + "\n";
  if (!plan.warnings.empty()) out += "\nWarnings\n";
  for (const std::string& warning : plan.warnings) out += "  " + warning + "\n";
  return out;
}

}  // namespace ddprun::cli
