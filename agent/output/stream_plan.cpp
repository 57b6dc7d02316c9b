#include "agent/output/stream_plan.h"

#include <algorithm>
#include <map>

#include "agent/text/substitute.h"

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
                                                 {"local_rank", local_rank},
                                                 {"hostname", worker.host}});
}

}  // namespace ddprun::agent
