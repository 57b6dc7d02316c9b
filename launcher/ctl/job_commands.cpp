// What ddpctl does with a running job (status, logs, events, stop, restart), and with what one has left.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/output/terminal_look.h"
#include "agent/query/log_query.h"
#include "agent/status/job_status.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/status_screen.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

namespace json = boost::json;
using agent::LogPart;

// ---- status: one screen, all nodes of the job

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

// ---- logs: what the workers print, on whichever node they run

// How a line reaches stdout: filtered for a terminal, which would obey escape sequences; unchanged
// for a file.
using Filter = std::string (*)(std::string_view);
Filter filter_of(const LogsArguments& arguments, const Environment& environment) {
  if (arguments.is_raw || ::isatty(STDOUT_FILENO) != 1) {
    return [](std::string_view text) { return std::string(text); };
  }
  return agent::look_from(environment).has_colour ? printable_in_colour : printable_lines;
}

// Prints whole lines, with their rank if there are several; holds back an unfinished line.
class Printer {
 public:
  Printer(bool has_prefix, Filter filter) : has_prefix_(has_prefix), filter_(filter) {}

  void print(const LogPart& part) {
    const std::string rank = std::to_string(part.next.rank);
    if (part.source == LogPart::Source::kElsewhere) {
      std::fprintf(
          stderr,
          "ddpctl: %s of rank %s is not kept, because it does not pass through ddprun on %s; "
          "start the job with --redirects=3 or --tee=3 to keep it\n",
          part.next.stream == agent::Stream::kStdout ? "stdout" : "stderr", rank.c_str(),
          printable(part.host).c_str());
      return;
    }
    if (!part.trouble.empty()) {
      std::fprintf(stderr, "ddpctl: rank %s on %s: %s\n", rank.c_str(),
                   printable(part.host).c_str(), printable(part.trouble).c_str());
    }
    if (part.missed > 0) {
      std::fprintf(stderr,
                   "ddpctl: %llu bytes of rank %s are missing, because they came too fast\n",
                   static_cast<unsigned long long>(part.missed), rank.c_str());
    }
    std::string& rest = unfinished_[{part.next.rank, part.next.stream}];
    rest += part.text;
    std::size_t begin = 0;
    for (auto end = rest.find('\n'); end != std::string::npos; end = rest.find('\n', begin)) {
      line(rank, std::string_view(rest).substr(begin, end - begin));
      begin = end + 1;
    }
    rest.erase(0, begin);
  }

  void finish() {
    for (const auto& [whose, rest] : unfinished_) {
      if (!rest.empty()) line(std::to_string(whose.first), rest);
    }
    std::fflush(stdout);
  }

 private:
  void line(const std::string& rank, std::string_view text) const {
    const std::string shown = (has_prefix_ ? "[" + rank + "] " : "") + filter_(text) + "\n";
    std::fwrite(shown.data(), 1, shown.size(), stdout);
  }

  bool has_prefix_;
  Filter filter_;
  std::map<std::pair<int, agent::Stream>, std::string> unfinished_;
};

std::string request_of(const LogsArguments& arguments) {
  agent::LogQuery question;
  question.ranks = arguments.ranks;
  question.lines = arguments.lines;
  json::object request = json::parse(to_json(question)).as_object();
  request["ask"] = "logs";
  request["follow"] = arguments.follows;
  return json::serialize(request);
}

// ---- stop, restart: requests to a job, which its leader carries out

// The number in one of the fields; -1: there is none.
std::int64_t number_in(const json::object& event, std::string_view name) {
  const auto* found = event.if_contains(name);
  return found != nullptr && found->is_int64() ? found->as_int64() : -1;
}

// The exit code, if this is the event that the command waits for.
using Judge =
    std::function<std::optional<int>(const json::object& event, const json::object& answer)>;

// One connection sends the request; another listens from before that, so that no event is missed.
int ask(const StopArguments& arguments, const std::string& request, const Judge& judge) {
  const auto failed = [](const Error& error) { return report(error, exit_code_of(error)); };
  auto job = find_job(arguments.job);
  if (!job) return failed(job.error());
  std::optional<ControlClient> events;
  if (!arguments.waits_not) {
    // The same agent, even if another job has this id.
    auto found = find_job(std::to_string(job->agent()));
    if (!found) return failed(found.error());
    events.emplace(std::move(*found));
    auto said = events->say(R"({"ask":"events","past":false,"follow":true})");
    if (!said) return failed(said.error());
  }
  if (auto said = job->say(request); !said) return failed(said.error());
  const auto answer = job->answer();
  if (!answer) return failed(answer.error());
  while (events) {
    const auto line = events->line(std::chrono::seconds(0));
    if (!line) return failed(line.error());
    if (!*line) {
      return report("the job's agent is gone and has not reported how the job ended", kJobFailed);
    }
    if (const auto code = judge(object_in(**line), object_in(*answer))) return *code;
  }
  return kJobDone;
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

int print_logs(const LogsArguments& arguments) {
  Printer printer(arguments.ranks.size() != 1, filter_of(arguments, environment_from(environ)));
  const auto patience = arguments.follows ? std::chrono::seconds(0) : kPatience;
  const auto print = [&](const std::string& line) -> int {
    const auto parts = agent::log_parts_from(line);
    if (!parts) return report(parts.error(), kJobFailed);
    for (const LogPart& part : *parts) printer.print(part);
    return kJobDone;
  };
  const int code = print_answer(arguments.job, request_of(arguments), patience, patience, print);
  if (code == kJobDone) printer.finish();
  return code;
}

int print_events(const EventsArguments& arguments) {
  const std::string request = std::string(R"({"ask":"events","past":true,"follow":)") +
                              (arguments.follows ? "true}" : "false}");
  const auto print = [](const std::string& line) -> int {
    std::printf("%s\n", printable(line).c_str());
    return kJobDone;
  };
  return print_answer(arguments.job, request, kPatience,
                      arguments.follows ? std::chrono::seconds(0) : kPatience, print);
}

int stop_job(const StopArguments& arguments) {
  return ask(arguments, R"({"ask":"stop"})", [](const json::object& event, const auto&) {
    if (field(event, "event") != "finished") return std::optional<int>();
    std::printf("the job has ended with exit code %d\n",
                static_cast<int>(number_in(event, "exit_code")));
    return std::optional<int>(kJobDone);
  });
}

int restart_job(const StopArguments& arguments) {
  const auto judge = [](const json::object& event,
                        const json::object& answer) -> std::optional<int> {
    const std::string name = field(event, "event");
    if (name == "finished") {
      const std::string code = std::to_string(number_in(event, "exit_code"));
      return report("the job ended instead, with exit code " + code, kJobFailed);
    }
    const std::int64_t round = number_in(event, "round");
    if (name != "round_started" || round <= number_in(answer, "round")) return std::nullopt;
    std::printf("round %lld runs\n", static_cast<long long>(round));
    return kJobDone;
  };
  return ask(arguments, R"({"ask":"restart"})", judge);
}

int replace_worker(const ReplaceArguments& arguments) {
  const std::string rank = std::to_string(arguments.rank);
  const auto judge = [&rank](const json::object& event, const auto&) -> std::optional<int> {
    const std::string name = field(event, "event");
    if (name == "finished") {
      const std::string code = std::to_string(number_in(event, "exit_code"));
      return report("the job ended instead, with exit code " + code, kJobFailed);
    }
    if (name == "round_started") {
      return report("rank " + rank + " was not replaced in place: all workers were restarted",
                    kJobFailed);
    }
    if (name != "recovered" || field(event, "how") != "replaced") return std::nullopt;
    std::printf("rank %s was replaced; all workers took their next step %.1f ms after its end\n",
                rank.c_str(), static_cast<double>(number_in(event, "downtime_us")) / 1000);
    return kJobDone;
  };
  return ask(arguments, R"({"ask":"replace","rank":)" + rank + "}", judge);
}

int forget_memory(const ForgetArguments& arguments) {
  const std::string& job = arguments.job;
  std::vector<agent::KeptMemory> kept = memories_of(job, kPatience);
  const bool is_used = std::ranges::any_of(kept, &agent::KeptMemory::is_in_use);
  std::erase_if(kept, &agent::KeptMemory::is_in_use);
  if (kept.empty()) {
    return report((job.empty() ? "no memory of a job of yours is kept on this node"
                               : "no memory of job '" + job + "' is kept on this node") +
                      std::string(is_used ? "; it is in use, because the job runs" : ""),
                  kNoJob);
  }
  std::set<std::string> jobs;
  std::string list;
  for (const agent::KeptMemory& each : kept) {
    if (each.is_silent) {
      return report("the process that holds the memory at " + each.folder + "/" + each.socket +
                        " does not answer: it is stopped; see ps for ddprun-memory",
                    kJobSilent);
    }
    if (jobs.insert(each.owner.job).second) list += "\n  " + sentence_about(each);
  }
  if (jobs.size() > 1)
    return report("several jobs have left memory; name one:" + list, kSeveralJobs);
  for (const agent::KeptMemory& each : kept) {
    const auto forgotten = agent::forget_memory(each, ::geteuid(), kPatience);
    if (!forgotten) return report(forgotten.error(), exit_code_of(forgotten.error()));
  }
  std::printf("the memory of job '%s' is free\n", printable(*jobs.begin()).c_str());
  return kJobDone;
}

}  // namespace ddprun::cli
