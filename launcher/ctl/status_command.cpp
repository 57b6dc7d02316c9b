// ddpctl status: a job on one screen, all nodes of it.
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "agent/status/job_status.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/status_screen.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

constexpr std::size_t kRows = 32;  // of nodes and of workers, if the screen's size is not known

// Two lists and their headings share the screen.
std::size_t rows_of_screen() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 20) return kRows;
  return static_cast<std::size_t>(size.ws_row - 12) / 2;
}

int show(ControlClient& job, const StatusArguments& arguments) {
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

}  // namespace

int show_status(const StatusArguments& arguments) {
  auto job = find_job(arguments.job);
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

}  // namespace ddprun::cli
