#include "agent/output/stream_plan.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string_view>

namespace ddprun::agent {
namespace {

bool covers(StreamSet all, const std::map<int, StreamSet>& of, int local_rank, Stream stream) {
  const auto found = of.find(local_rank);
  const auto set = static_cast<unsigned>(found == of.end() ? all : found->second);
  const auto wanted = stream == Stream::kStdout ? StreamSet::kStdout : StreamSet::kStderr;
  return (set & static_cast<unsigned>(wanted)) != 0;
}

bool shows(const OutputSpec& spec, int local_rank) {
  const auto& filter = spec.local_ranks_filter;
  return filter.empty() || std::find(filter.begin(), filter.end(), local_rank) != filter.end();
}

// Length of the identifier at the start of `text` ([_A-Za-z][_A-Za-z0-9]*), 0 if there is none.
std::size_t identifier_length(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size()) {
    const auto c = static_cast<unsigned char>(text[length]);
    const bool fits = c < 128 && (c == '_' || std::isalpha(c) || (length > 0 && std::isdigit(c)));
    if (!fits) break;
    ++length;
  }
  return length;
}

std::string substitute(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  for (std::size_t dollar; (dollar = text.find('$')) != std::string_view::npos;) {
    result.append(text.substr(0, dollar));
    text.remove_prefix(dollar);  // now begins with the $
    if (text.substr(0, 2) == "$$") {
      result += '$';
      text.remove_prefix(2);
      continue;
    }
    const bool is_braced = text.substr(0, 2) == "${";
    const std::size_t begin = is_braced ? 2 : 1;
    const std::size_t length = identifier_length(text.substr(begin));
    std::size_t end = begin + length;
    const bool is_closed = !is_braced || (end < text.size() && text[end] == '}');
    if (is_braced && is_closed) ++end;
    const auto value = values.find(text.substr(begin, length));
    if (length > 0 && is_closed && value != values.end()) {
      result += value->second;
      text.remove_prefix(end);
    } else {
      result += '$';
      text.remove_prefix(1);
    }
  }
  return result.append(text);
}

}  // namespace

bool has_files(const OutputSpec& spec) { return spec.log_dir != "/dev/null"; }

bool needs_files(const OutputSpec& spec) {
  const auto some = [](StreamSet all, const std::map<int, StreamSet>& of) {
    return all != StreamSet::kNone || std::any_of(of.begin(), of.end(), [](const auto& entry) {
             return entry.second != StreamSet::kNone;
           });
  };
  return has_files(spec) && (!spec.log_dir.empty() || some(spec.redirects, spec.redirects_of) ||
                             some(spec.tee, spec.tee_of));
}

StreamPlan plan_stream(const OutputSpec& spec, Stream stream, int local_rank,
                       bool console_is_terminal) {
  const bool is_teed = has_files(spec) && covers(spec.tee, spec.tee_of, local_rank, stream);
  const bool is_redirected =
      has_files(spec) && covers(spec.redirects, spec.redirects_of, local_rank, stream);
  const bool is_shown = !has_files(spec) || shows(spec, local_rank);
  const auto& filters =
      stream == Stream::kStdout ? spec.duplicate_stdout_filters : spec.duplicate_stderr_filters;
  StreamPlan plan;
  plan.to_file = is_teed || is_redirected;
  plan.to_console = is_shown && (is_teed || !is_redirected);
  plan.is_prefixed = plan.to_console && (is_teed || spec.line_prefix_template.has_value());
  plan.is_filtered = is_teed && is_shown && !filters.empty();
  plan.keeps_tail = stream == Stream::kStderr && spec.stderr_tail_lines > 0;

  using Route = StreamPlan::Route;
  const bool passes_agent = plan.to_file || plan.is_prefixed || plan.keeps_tail;
  if (!passes_agent) {
    plan.route = plan.to_console ? Route::kInherit : Route::kDevNull;
  } else {
    const bool is_plain = plan.to_console && !plan.to_file && !plan.is_prefixed;
    plan.route = is_plain && console_is_terminal ? Route::kAgentAsTty : Route::kAgent;
  }
  return plan;
}

std::string line_prefix(const OutputSpec& spec, const WorkerIdentity& worker) {
  const std::string local_rank = std::to_string(worker.local_rank);
  if (!spec.line_prefix_template) return "[" + worker.role + local_rank + "]:";
  return substitute(*spec.line_prefix_template, {{"role_name", worker.role},
                                                 {"rank", std::to_string(worker.rank)},
                                                 {"local_rank", local_rank}});
}

}  // namespace ddprun::agent
