// ddpctl leader: leads the rounds of a job without being one of its nodes.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/subcommand.h"
#include "launcher/plan/leader_options.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/run_leader.h"

namespace ddprun::cli {
namespace {

constexpr const char* kExitCodes =
    R"(Exit codes: those of the job, as every ddprun of it ends with them. Among them:
  0    every worker ended with 0
  2    wrong usage
  110  the nodes did not come together in time
  112  fewer nodes than the minimum were left
  114  the address to listen on cannot be had
)";

struct Arguments {
  std::string listen;
  CommandLine line;
};

int lead(const Arguments& arguments) {
  const Settings settings = resolve(arguments.line, environment_from(environ), {});
  std::vector<std::string> warnings;
  const auto job = read_leader_job(arguments.listen, settings, warnings);
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "ddpctl: warning: %s\n", printable(warning).c_str());
  }
  return job ? rdzv::run_leader(*job) : report(job.error(), kExitUsage);
}

}  // namespace

std::function<int()> add_leader_command(CLI::App& app) {
  Subcommand leader(
      app, "leader",
      "Lead the rounds of a job, until it has ended, without being one of its nodes.");
  leader.footer(kExitCodes);
  const auto held = std::make_shared<Arguments>();  // as long as what is returned
  leader
      .option("--listen", held->listen,
              "HOST:PORT to listen on, the --rdzv-endpoint of the nodes (port 0: any free port); "
              "the address is printed when nodes may connect")
      .required();
  for (const OptionId id : leader_options()) {
    const OptionSpec& spec = spec_of(id);
    const std::string name = "--" + std::string(spec.name);
    std::string underscored = name;
    std::replace(underscored.begin() + 2, underscored.end(), '-', '_');
    auto* value = &held->line.values[static_cast<std::size_t>(id)];
    leader
        .option(
            name == underscored ? name : name + "," + underscored,
            [value](const std::string& text) { *value = text; }, std::string(spec.help))
        .shows_type(std::string(spec.value_name))
        .shows_default(std::string(spec.default_text))
        .takes_last();
  }
  return [held] { return lead(*held); };
}

}  // namespace ddprun::cli
