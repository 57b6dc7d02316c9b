// ddpctl logs: what the workers of a job print, on whichever node they run; ddpctl events: the
// latest and the coming events of this node of a job, as lines of --events.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "agent/output/terminal_look.h"
#include "agent/query/log_query.h"
#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::cli {
namespace {

using agent::LogPart;

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
  boost::json::object request = boost::json::parse(to_json(question)).as_object();
  request["ask"] = "logs";
  request["follow"] = arguments.follows;
  return boost::json::serialize(request);
}

}  // namespace

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

}  // namespace ddprun::cli
