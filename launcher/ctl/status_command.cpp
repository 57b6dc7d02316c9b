// ddpctl status: a job on one screen, all nodes of it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "agent/status/job_status.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/status_screen.h"
#include "launcher/ctl/subcommand.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

constexpr std::size_t kRows = 32;  // of nodes and of workers, if the screen's size is not known

struct Arguments {
  std::string job;
  bool as_json = false;
  bool watches = false;
  bool shows_all = false;
  double interval_s = 1;
};

// Two lists and their headings share the screen.
std::size_t rows_of_screen() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 20) return kRows;
  return static_cast<std::size_t>(size.ws_row - 12) / 2;
}

int show(ControlClient& job, const Arguments& arguments) {
  if (auto asked = job.say(R"({"ask":"status"})"); !asked) return report(asked.error(), kJobFailed);
  const auto line = job.answer();
  if (!line) return report(line.error(), exit_code_of(line.error()));
  const bool redraws = arguments.watches && !arguments.as_json && ::isatty(STDOUT_FILENO) == 1;
  std::string text = redraws ? "\x1b[H\x1b[J" : "";
  if (arguments.as_json) {
    text += printable(*line) + "\n";
  } else {
    const auto status = agent::job_status_from(*line);
    if (!status) return report(status.error(), kJobFailed);
    text += status_screen(*status, arguments.shows_all ? kAllRows : rows_of_screen());
    if (arguments.watches && !redraws) text += "\n";
  }
  std::fputs(text.c_str(), stdout);
  return std::fflush(stdout) == 0 ? kJobDone : kJobFailed;
}

int run(const Arguments& arguments) {
  auto job = find_job(environment_from(environ), arguments.job);
  if (!job) return report(job.error(), exit_code_of(job.error()));
  const auto interval = std::chrono::duration<double>(arguments.interval_s);
  for (;;) {
    const int code = show(*job, arguments);
    if (code != kJobDone || !arguments.watches) return code;
    // The agent sends nothing in between, so anything that arrives is the end of the job.
    const auto end = job->line(std::chrono::ceil<std::chrono::milliseconds>(interval));
    if (end && !*end) {
      std::fputs("the job has ended\n", stderr);
      return kJobDone;
    }
  }
}

}  // namespace

std::function<int()> add_status_command(CLI::App& app) {
  Subcommand status(app, "status", "Show a running job: rounds, nodes, workers.");
  status.footer(kJobExitCodes);
  const auto held = std::make_shared<Arguments>();  // as long as what is returned
  status.option("JOB", held->job,
                "its id (--rdzv-id), or the process id of its agent on this node; needed "
                "if several jobs run");
  status.flag("--json", held->as_json, "as one line of JSON (agent/README.md has its fields)");
  status.flag("--watch", held->watches, "repeat until the job has ended");
  status.option("--interval", held->interval_s, "seconds between updates, with --watch")
      .shows_default()
      .in_range(0.1, 86400.0);
  status.flag("--all", held->shows_all, "every node and worker, however many there are");
  return [held] { return run(*held); };
}

}  // namespace ddprun::cli
