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
#include "agent/query/drain_query.h"
#include "agent/query/log_query.h"
#include "agent/status/job_status.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/status_screen.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/ranks.h"
#include "rendezvous/round/hang_core.h"

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
  Printer(bool has_prefix, bool is_raw, Filter filter)
      : has_prefix_(has_prefix), is_raw_(is_raw), filter_(filter) {}

  void print(const LogPart& part) {
    const std::string rank = std::to_string(part.next.rank);
    if (part.source == LogPart::Source::kElsewhere) {
      elsewhere_[part.next.stream].insert(part.next.rank);
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
    // A progress bar has no end of line until it is done.
    if (!is_raw_) rest.erase(0, agent::overwritten_in(rest));
  }

  // Which streams cannot be shown, with all their ranks in a sentence.
  void tell_elsewhere() {
    for (const auto& [stream, ranks] : elsewhere_) {
      std::fprintf(stderr,
                   "ddpctl: %s of %s is not kept, because it does not pass through ddprun; start "
                   "the job with --redirects=3 or --tee=3 to keep it\n",
                   stream == agent::Stream::kStdout ? "stdout" : "stderr",
                   ranks_in_words({ranks.begin(), ranks.end()}).c_str());
    }
    elsewhere_.clear();
  }

  void finish() {
    tell_elsewhere();
    for (const auto& [whose, rest] : unfinished_) {
      if (!rest.empty()) line(std::to_string(whose.first), rest);
    }
    std::fflush(stdout);
  }

 private:
  void line(const std::string& rank, std::string_view text) const {
    if (!is_raw_) {
      text.remove_prefix(agent::overwritten_in(text));
      while (text.ends_with('\r')) text.remove_suffix(1);
    }
    const std::string shown = (has_prefix_ ? "[" + rank + "] " : "") + filter_(text) + "\n";
    std::fwrite(shown.data(), 1, shown.size(), stdout);
  }

  bool has_prefix_;
  bool is_raw_;
  Filter filter_;
  std::map<agent::Stream, std::set<int>> elsewhere_;
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

constexpr std::chrono::milliseconds kStatusInterval{250};

// The number in one of the fields; -1: there is none.
std::int64_t number_in(const json::object& event, std::string_view name) {
  const auto* found = event.if_contains(name);
  return found != nullptr && found->is_int64() ? found->as_int64() : -1;
}

// A job that was asked for something. One connection sends the request; another listens from before
// that, so that no event is missed.
struct Asked {
  ControlClient job;
  std::optional<ControlClient> events;  // nothing with --no-wait
  json::object answer;
};

Result<Asked> ask(const StopArguments& arguments, const std::string& request) {
  auto job = find_job(arguments.job);
  if (!job) return fail(std::move(job.error()));
  if (arguments.job.empty()) {
    std::fprintf(stderr, "ddpctl: the job is %s\n", printable(job->about()).c_str());
  }
  std::optional<ControlClient> events;
  if (!arguments.waits_not) {
    // The same agent, even if another job has this id.
    auto found = find_job(std::to_string(job->agent()));
    if (!found) return fail(std::move(found.error()));
    events.emplace(std::move(*found));
    auto said = events->say(R"({"ask":"events","past":false,"follow":true})");
    if (!said) return fail(std::move(said.error()));
  }
  if (auto said = job->say(request); !said) return fail(std::move(said.error()));
  const auto answer = job->answer();
  if (!answer) return fail(answer.error());
  return Asked{std::move(*job), std::move(events), object_in(*answer)};
}

int gone() {
  return report("the job's agent is gone and has not reported how the job ended", kJobFailed);
}

int ended_instead(const json::object& event) {
  return report(
      "the job ended instead, with exit code " + std::to_string(number_in(event, "exit_code")),
      kJobFailed);
}

// Calls `judge` with each event, until that returns the exit code.
int wait_for(Asked& asked,
             const std::function<std::optional<int>(const json::object& event)>& judge) {
  while (asked.events) {
    const auto line = asked.events->line(std::chrono::seconds(0));
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line) return gone();
    if (const auto code = judge(object_in(**line))) return *code;
  }
  return kJobDone;
}

// ---- restart

Result<agent::JobStatus> status_of(ControlClient& job) {
  if (auto said = job.say(R"({"ask":"status"})"); !said) return fail(std::move(said.error()));
  const auto line = job.answer();
  if (!line) return fail(line.error());
  return agent::job_status_from(*line);
}

// Whether a worker has reported a step of that round. Not all need to report any.
Result<bool> has_stepped(ControlClient& job, std::int64_t round) {
  const auto status = status_of(job);
  if (!status) return fail(status.error());
  return std::ranges::any_of(status->nodes, [round](const agent::NodeStatus& node) {
    return node.round && number(*node.round) == round &&
           std::ranges::any_of(node.workers, [](const agent::WorkerStatus& worker) {
             return worker.progress && worker.progress->step;
           });
  });
}

// No event tells of it, so the status is asked for, until an event tells that it will not come.
int wait_for_first_step(Asked& asked, std::int64_t round,
                        std::chrono::steady_clock::time_point began) {
  for (;;) {
    const auto has = has_stepped(asked.job, round);
    if (!has) return report(has.error(), exit_code_of(has.error()));
    if (*has) {
      const auto took = std::chrono::steady_clock::now() - began;
      std::printf("its first step was done %s after the request\n", time_in_words(took).c_str());
      return kJobDone;
    }
    const auto line = asked.events->line(kStatusInterval);
    if (!line && line.error().code == ErrorCode::kTimeout) continue;
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line) return gone();
    const json::object event = object_in(**line);
    if (field(event, "event") == "finished") return ended_instead(event);
    if (field(event, "event") == "round_started") {
      return report("round " + std::to_string(round) + " ended before its first step; round " +
                        std::to_string(number_in(event, "round")) + " runs",
                    kJobFailed);
    }
  }
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
  Printer printer(arguments.ranks.size() != 1, arguments.is_raw,
                  filter_of(arguments, environment_from(environ)));
  const auto patience = arguments.follows ? std::chrono::seconds(0) : kPatience;
  const auto print = [&](const std::string& line) -> int {
    const auto parts = agent::log_parts_from(line);
    if (!parts) return report(parts.error(), kJobFailed);
    for (const LogPart& part : *parts) printer.print(part);
    if (arguments.follows) printer.tell_elsewhere();  // the end may be far away
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
  auto asked = ask(arguments, R"({"ask":"stop"})");
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  return wait_for(*asked, [](const json::object& event) -> std::optional<int> {
    if (field(event, "event") != "finished") return std::nullopt;
    std::printf("the job has ended with exit code %d\n",
                static_cast<int>(number_in(event, "exit_code")));
    return kJobDone;
  });
}

int restart_job(const StopArguments& arguments) {
  const auto began = std::chrono::steady_clock::now();
  auto asked = ask(arguments, R"({"ask":"restart"})");
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  const std::int64_t before = number_in(asked->answer, "round");
  const bool reports_steps = number_in(asked->answer, "step") >= 0;
  if (asked->events) {
    std::fprintf(stderr, "ddpctl: waiting until the workers of round %lld have ended\n",
                 static_cast<long long>(before));
  }
  std::int64_t round = -1;
  const auto judge = [&](const json::object& event) -> std::optional<int> {
    const std::string name = field(event, "event");
    if (name == "finished") return ended_instead(event);
    if (name != "round_started" || number_in(event, "round") <= before) return std::nullopt;
    round = number_in(event, "round");
    return kJobDone;
  };
  const int code = wait_for(*asked, judge);
  if (code != kJobDone || !asked->events) return code;
  std::printf("round %lld runs\n", static_cast<long long>(round));
  std::fflush(stdout);
  if (!reports_steps) {
    std::fputs("ddpctl: no step was reported before, so none is waited for\n", stderr);
    return kJobDone;
  }
  std::fputs("ddpctl: waiting for its first step\n", stderr);
  return wait_for_first_step(*asked, round, began);
}

int replace_worker(const ReplaceArguments& arguments) {
  const std::string rank = std::to_string(arguments.rank);
  auto asked = ask(arguments, R"({"ask":"replace","rank":)" + rank + "}");
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  return wait_for(*asked, [&rank](const json::object& event) -> std::optional<int> {
    const std::string name = field(event, "event");
    if (name == "finished") return ended_instead(event);
    if (name == "round_started") {
      return report("rank " + rank + " was not replaced in place: all workers were restarted",
                    kJobFailed);
    }
    if (name != "recovered" || field(event, "how") != "replaced") return std::nullopt;
    std::printf("rank %s was replaced; all workers took their next step %.1f ms after its end\n",
                rank.c_str(), static_cast<double>(number_in(event, "downtime_us")) / 1000);
    return kJobDone;
  });
}

// ---- drain, undrain

namespace {

std::string request_of(const DrainArguments& arguments, std::string_view what) {
  return json::serialize(
      json::object{{"ask", what}, {"node", arguments.node}, {"at_once", arguments.is_at_once}});
}

std::string name_in(const json::object& answer) {
  return printable(field(answer, "host")) + " (" + printable(field(answer, "address")) + ")";
}

bool is_of_host(const agent::MemberStatus& member, const json::object& host) {
  return member.host == field(host, "host") && member.address == field(host, "address");
}

// What became of the drain; empty: it will soon be seen.
std::string outcome_of_drain(const agent::LeaderStatus& leader, const json::object& host) {
  using State = agent::MemberStatus::State;
  const std::string name = name_in(host);
  const bool is_in_round = std::ranges::any_of(leader.members, [&](const auto& each) {
    return is_of_host(each, host) && each.state != State::kLeftOut &&
           each.state != State::kDisconnected;
  });
  if (!is_in_round) {
    const bool leads = host.contains("leads") && host.at("leads").as_bool();
    return name + " is left out" +
           (leads ? "; it leads the job: its ddprun must stay, the job ends with it" : "");
  }
  if (leader.is_finishing) {
    return "a worker of the job has finished already: " + name + " takes part until the job ends";
  }
  const auto drained = agent::host_to_drain(leader, field(host, "address"));
  if (!drained || drained->missing == 0) return "";
  return name + " takes part until " +
         (drained->missing == 1 ? "another node is"
                                : std::to_string(drained->missing) + " other nodes are") +
         " there, and is left out then";
}

// No event tells it if the node is a spare, or if no round runs.
int wait_until_left_out(Asked& asked) {
  while (asked.events) {
    const auto status = status_of(asked.job);
    if (!status) return report(status.error(), exit_code_of(status.error()));
    const std::string outcome =
        status->leader ? outcome_of_drain(*status->leader, asked.answer) : "";
    if (!outcome.empty()) {
      std::printf("%s\n", outcome.c_str());
      return kJobDone;
    }
    const auto line = asked.events->line(kStatusInterval);
    if (!line && line.error().code == ErrorCode::kTimeout) continue;
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line) return gone();
    const json::object event = object_in(**line);
    if (field(event, "event") == "finished") return ended_instead(event);
  }
  return kJobDone;
}

}  // namespace

int drain_node(const DrainArguments& arguments) {
  auto asked = ask(arguments, request_of(arguments, "drain"));
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  return wait_until_left_out(*asked);
}

int undrain_node(const DrainArguments& arguments) {
  StopArguments request = arguments;
  request.waits_not = true;
  const auto asked = ask(request, request_of(arguments, "undrain"));
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  const std::string why = printable(field(asked->answer, "why"));
  std::printf("%s %s\n", name_in(asked->answer).c_str(),
              why.empty() ? "was not to be left out" : ("may take part again: " + why).c_str());
  return kJobDone;
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
