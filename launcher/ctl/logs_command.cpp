// ddpctl logs: what the workers of a job print, on whichever node they run.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/output/terminal_look.h"
#include "agent/query/log_query.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "launcher/ctl/subcommand.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

using agent::LogPart;

struct Arguments {
  std::string job;
  std::vector<int> ranks;
  int lines = 20;
  bool follows = false;
  bool is_raw = false;
};

std::string name_of(agent::Stream stream) {
  return stream == agent::Stream::kStdout ? "stdout" : "stderr";
}

// Which escape sequences of a line reach stdout.
enum class Escapes { kAll, kColours, kNone };

// Filtered for a terminal, which would obey them; unchanged for a file.
Escapes escapes_of(const Arguments& arguments, const Environment& environment) {
  if (arguments.is_raw || ::isatty(STDOUT_FILENO) != 1) return Escapes::kAll;
  return agent::look_from(environment).has_colour ? Escapes::kColours : Escapes::kNone;
}

// Prints whole lines, with their rank if there are several; holds back an unfinished line.
class Printer {
 public:
  Printer(bool has_prefix, Escapes escapes) : has_prefix_(has_prefix), escapes_(escapes) {}

  void print(const LogPart& part) {
    const std::string rank = std::to_string(part.next.rank);
    if (part.source == LogPart::Source::kElsewhere) {
      std::fprintf(
          stderr,
          "ddpctl: %s of rank %s is not kept, because it does not pass through ddprun on %s; "
          "start the job with --redirects=3 or --tee=3 to keep it\n",
          name_of(part.next.stream).c_str(), rank.c_str(), printable(part.host).c_str());
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
    std::string shown = has_prefix_ ? "[" + rank + "] " : "";
    switch (escapes_) {
      case Escapes::kAll:
        shown += text;
        break;
      case Escapes::kColours:
        shown += printable_in_colour(text);
        break;
      case Escapes::kNone:
        shown += printable_lines(text);
        break;
    }
    shown += '\n';
    std::fwrite(shown.data(), 1, shown.size(), stdout);
  }

  bool has_prefix_;
  Escapes escapes_;
  std::map<std::pair<int, agent::Stream>, std::string> unfinished_;
};

std::string request_of(const Arguments& arguments) {
  agent::LogQuery question;
  question.ranks = arguments.ranks;
  question.lines = arguments.lines;
  boost::json::object request = boost::json::parse(to_json(question)).as_object();
  request["ask"] = "logs";
  request["follow"] = arguments.follows;
  return boost::json::serialize(request);
}

int run(const Arguments& arguments) {
  const Environment environment = environment_from(environ);
  auto job = find_job(environment, arguments.job);
  if (!job) return report(job.error(), exit_code_of(job.error()));
  if (auto asked = job->say(request_of(arguments)); !asked) {
    return report(asked.error(), kJobFailed);
  }
  Printer printer(arguments.ranks.size() != 1, escapes_of(arguments, environment));
  for (;;) {
    const auto line = job->line(arguments.follows ? std::chrono::seconds(0) : kPatience);
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line || **line == R"({"end":true})") break;
    if (const auto error = error_in(**line)) return report({{}, *error, {}}, kJobFailed);
    const auto parts = agent::log_parts_from(**line);
    if (!parts) return report(parts.error(), kJobFailed);
    for (const LogPart& part : *parts) printer.print(part);
    if (std::fflush(stdout) != 0) return kJobFailed;
  }
  printer.finish();
  return kJobDone;
}

}  // namespace

std::function<int()> add_logs_command(CLI::App& app) {
  Subcommand logs(
      app, "logs",
      "Print the last lines of workers' output, from all nodes of a job. With -r, -t or --log-dir "
      "they are read from the log files; else only the latest lines of stderr are there.");
  logs.footer(kJobExitCodes);
  const auto held = std::make_shared<Arguments>();
  logs.option("JOB", held->job, "its id, or the process id of its agent on this node");
  logs.option("--rank", held->ranks, "only of these workers: RANK,...; default: all, up to 32")
      .takes_commas()
      .shows_type("RANK,...");
  logs.option("-n,--lines", held->lines, "of each worker's streams")
      .shows_default()
      .in_range(0, agent::LogQuery::kLinesMax);
  logs.flag("-f,--follow", held->follows,
            "also print new output, of later rounds too, until the job has ended");
  logs.flag("--raw", held->is_raw,
            "print every byte unchanged; without it a terminal gets colours, and all other "
            "escape sequences as text");
  return [held] { return run(*held); };
}

}  // namespace ddprun::cli
