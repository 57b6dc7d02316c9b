// ddprun: wiring only. The command line and the environment become a Plan, the Plan's Job goes to
// the agent; what may go wrong before a worker exists ends here as one sentence on stderr.
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "launcher/help.h"
#include "launcher/options.h"
#include "launcher/plan.h"
#include "launcher/plan_text.h"
#include "launcher/settings.h"
#include "launcher/values.h"

namespace ddprun::cli {
namespace {

constexpr int kWrongUsage = 2;
constexpr int kCannotExecute = 126;  // as a shell
constexpr int kNotFound = 127;

int print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

int refuse(const Error& error) {
  std::fprintf(stderr, "ddprun: %s\n", error.to_string().c_str());
  switch (error.code) {
    case ErrorCode::kNotFound:
      return kNotFound;
    case ErrorCode::kPermissionDenied:
      return kCannotExecute;
    default:
      return kWrongUsage;
  }
}

std::string current_directory() {
  std::array<char, 4096> path{};
  return ::getcwd(path.data(), path.size()) == nullptr ? "." : path.data();
}

std::string ddprun_directory() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string program(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return program.substr(0, program.rfind('/'));
}

std::string random_uuid() {
  std::array<unsigned char, 16> bytes{};
  // Short reads and EINTR do not happen for so few bytes.
  if (::getrandom(bytes.data(), bytes.size(), 0) < 0) std::abort();
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kHex[bytes[i] >> 4];
    text += kHex[bytes[i] & 0x0f];
  }
  return text;
}

int run(const std::vector<std::string>& arguments, const Environment& environment) {
  const auto line = parse_command_line(arguments);
  if (!line) return refuse(line.error());
  if (line->value(OptionId::kHelp)) return print(help_text());
  if (line->value(OptionId::kVersion)) return print("ddprun " DDPRUN_VERSION "\n");

  const Settings settings = resolve(*line, environment, {});
  const auto dry_run = read_flag(spec_of(OptionId::kDryRun), settings[OptionId::kDryRun]);
  if (!dry_run) return refuse(dry_run.error());

  const Surroundings surroundings{{current_directory(), ddprun_directory()}, {}, random_uuid()};
  const auto plan = make_plan(settings, line->command, environment, surroundings);
  if (!plan) return refuse(plan.error());
  if (*dry_run) return print(to_table(*plan));

  for (const std::string& warning : plan->warnings) {
    std::fprintf(stderr, "ddprun: warning: %s\n", warning.c_str());
  }
  if (const auto prepared = prepare_log_dir(*plan); !prepared) return refuse(prepared.error());
  return agent::run(plan->job);
}

}  // namespace
}  // namespace ddprun::cli

int main(int argc, char** argv) {
  return ddprun::cli::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
                          ddprun::environment_from(environ));
}
