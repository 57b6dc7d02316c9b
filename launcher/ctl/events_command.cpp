// ddpctl events: the latest and the coming events of this node of a job, as lines of --events.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/subcommand.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

struct Arguments {
  std::string job;
  bool follows = false;
};

int run(const Arguments& arguments) {
  auto job = find_job(environment_from(environ), arguments.job);
  if (!job) return report(job.error(), exit_code_of(job.error()));
  const std::string request = std::string(R"({"ask":"events","past":true,"follow":)") +
                              (arguments.follows ? "true}" : "false}");
  if (auto asked = job->say(request); !asked) return report(asked.error(), kJobFailed);
  bool is_first = true;
  for (;;) {
    const bool may_take_long = arguments.follows && !is_first;
    const auto line = job->line(may_take_long ? std::chrono::seconds(0) : kPatience);
    is_first = false;
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line || **line == R"({"end":true})") return kJobDone;
    if (const auto error = error_in(**line)) return report({{}, *error, {}}, kJobFailed);
    std::printf("%s\n", printable(**line).c_str());
    if (std::fflush(stdout) != 0) return kJobFailed;
  }
}

}  // namespace

std::function<int()> add_events_command(CLI::App& app) {
  Subcommand events(app, "events",
                    "Print the latest events of a job on this node, as --events writes them.");
  events.footer(kJobExitCodes);
  const auto held = std::make_shared<Arguments>();
  events.option("JOB", held->job, "its id, or the process id of its agent on this node");
  events.flag("-f,--follow", held->follows, "also print new events, until the job has ended");
  return [held] { return run(*held); };
}

}  // namespace ddprun::cli
