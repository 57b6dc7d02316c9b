// ddprun: wiring only. The command line and the environment become a Plan, the Plan's Job goes to
// the agent; what may go wrong before a worker exists ends here as one sentence on stderr.
#include <poll.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <boost/uuid/random_generator.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/failure/failure_copies.h"
#include "agent/health/health_facts.h"
#include "agent/output/log.h"
#include "agent/supervisor/agent.h"
#include "launcher/as_torchrun/as_torchrun.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/help.h"
#include "launcher/health/health_role.h"
#include "launcher/plan/plan.h"
#include "launcher/settings/config_file.h"
#include "launcher/settings/settings.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/net/exception_error.h"

namespace ddprun::cli {
namespace {

int print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// Who looks at a pod sees its termination message first, and often nothing else.
int refuse(const Error& error, const Environment& environment) {
  const std::string sentence = "ddprun: " + printable_lines(error.to_string()) + "\n";
  std::fputs(sentence.c_str(), stderr);
  agent::write_termination_log(agent::termination_log(environment), sentence);
  if (error.code == ErrorCode::kNotFound) return kExitNotFound;
  return error.code == ErrorCode::kPermissionDenied ? kExitNotExecutable : kExitUsage;
}

// Options that print something and end; none of them needs a program.
std::optional<int> print_information(const CommandLine& line, const Settings& settings,
                                     const Environment& environment) {
  if (line.value(OptionId::kHelp)) return print(help_text());
  if (line.value(OptionId::kVersion)) return print(version_text("ddprun"));
  if (line.value(OptionId::kPrintManPage)) return print(man_page(version()));
  if (line.value(OptionId::kPrintOptionTable)) return print(option_table_markdown());
  if (!line.value(OptionId::kPrintCompletion)) return std::nullopt;
  const auto shell = read_choice(resolved(settings, OptionId::kPrintCompletion));
  return shell ? print(completion_script(*shell)) : refuse(shell.error(), environment);
}

// The file that this program was executed by, links not followed: it says which environment of Python is meant. (/proc/self/exe
// is where links lead, and argv[0] may have no path.) Empty: not known.
const char* executed_as() {
  const auto* const file = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return file == nullptr ? "" : file;
}

std::string warning_line(const std::string& warning) {
  return "ddprun: warning: " + printable(warning) + "\n";
}

// When the agent has ended; a terminal or pipe that takes nothing does not hold the end up.
void print_last(const std::string& line) {
  constexpr int kPatienceMs = 1000;
  pollfd console{STDERR_FILENO, POLLOUT, 0};
  if (::poll(&console, 1, kPatienceMs) == 1 && (console.revents & POLLOUT) != 0) {
    std::ignore = ::write(STDERR_FILENO, line.data(), line.size());
  }
}

// A thread may be inside of a call that does not return (BlockingCalls). Exit handlers free what it uses, such as OpenSSL's.
[[noreturn]] void end(int code) {
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__)  // which looks for leaks then
  std::exit(code);
#else
  ::_exit(code);
#endif
}

int launch(Plan plan) {
  for (const std::string& warning : plan.warnings) {
    std::fputs(warning_line(warning).c_str(), stderr);
  }
  if (agent::logs_info(plan.job.environment)) {  // how values were found
    for (const std::string& note : plan.notes) {
      std::fprintf(stderr, "ddprun: %s\n", printable(note).c_str());
    }
  }
  if (const auto prepared = prepare_outputs(plan); !prepared)
    return refuse(prepared.error(), plan.job.environment);
  agent::Job job = std::move(plan.job);
  job.version = version();
  const int code = agent::run(job);
  if (!plan.last_line.empty()) print_last(warning_line(plan.last_line));
  end(code);
}

int run(int argc, char** argv, const Environment& environment) {
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (arguments.size() == 1 && arguments.front() == agent::kHealthRole) {
    return run_health_role(environment);
  }
  auto line = parse_command_line(arguments);
  if (!line) return refuse(line.error(), environment);
  const bool is_torchrun = argc > 0 && is_called_torchrun(argv[0]);
  auto site = find_site(environment);
  if (site) site->is_for_torchrun = is_torchrun;
  Settings settings = resolve(*line, environment, {}, site);
  if (const auto done = print_information(*line, settings, environment)) return *done;

  Taking take;
  const ConfigFile file = take(read_config(resolved(settings, OptionId::kConfig)));
  if (!file.values.empty()) settings = resolve(*line, environment, file.values, site);
  if (Setting& rule = settings[OptionId::kExitCode]; is_torchrun && rule.is_default()) {
    rule.text = "torchrun";
  }
  const std::string before = is_torchrun ? called_by_path(environment) : "";
  const std::string called = before.empty() ? executed_as() : before;
  if (line->value(OptionId::kAsTorchrun) && !take.error) {
    return refuse(become_as_torchrun(*line, file.values, environment, called), environment);
  }
  const bool is_dry_run = take(read_flag(resolved(settings, OptionId::kDryRun)));
  const ResolvedOption json = resolved(settings, OptionId::kJson);
  const bool as_json = take(read_flag(json));
  if (take.error) return refuse(*take.error, environment);
  if (as_json && !is_dry_run) {
    return refuse(usage_error(json, "it goes with --dry-run only"), environment);
  }

  const std::string directory = current_directory();
  // It may throw, and GCC 12 destroys members twice if an initialiser of an aggregate throws.
  std::string id = boost::uuids::to_string(boost::uuids::random_generator()());
  const Surroundings surroundings{{directory, own_folder, environment_bin(called, directory)},
                                  {},
                                  std::move(id),
                                  rdzv::kMungeLibrary,
                                  ::getpid() == 1};
  auto plan = make_plan(settings, line->command.empty() ? file.command : line->command, environment,
                        surroundings);
  if (!plan) return refuse(plan.error(), environment);
  if (is_dry_run) return print(as_json ? to_json(*plan) : to_table(*plan));
  return launch(std::move(*plan));
}

}  // namespace
}  // namespace ddprun::cli

int main(int argc, char** argv) {
  try {
    return ddprun::cli::run(argc, argv, ddprun::environment_from(environ));
  } catch (const std::exception& exception) {
    const auto error = ddprun::rdzv::error_from_exception(exception);
    std::fprintf(stderr, "ddprun: %s\n", error.message.c_str());
    return ddprun::kExitCannotRun;
  }
}
