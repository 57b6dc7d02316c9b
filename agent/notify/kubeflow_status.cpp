#include "agent/notify/kubeflow_status.h"

#include <algorithm>
#include <boost/json.hpp>
#include <limits>

#include "agent/text/json_text.h"
#include "rendezvous/common/text/time_text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kTokenBytesMax = std::size_t{16} * 1024;
// The field of the API has 32 bits.
constexpr double kSecondsMax = std::numeric_limits<std::int32_t>::max();

// A worker may report any value.
std::int64_t percentage(const JobProgress& progress) {
  const double done =
      static_cast<double>(progress.step) / static_cast<double>(progress.total_steps);
  return static_cast<std::int64_t>(std::clamp(done, 0.0, 1.0) * 100);
}

}  // namespace

std::optional<TrainerEndpoint> trainer_endpoint(const Environment& environment) {
  for (const std::string prefix : {"KUBEFLOW_TRAINER_SERVER_", "KUBEFLOW_TRAINER_STATUS_"}) {
    const std::string url = value_or_empty(environment, prefix + "URL");
    if (url.empty()) continue;
    return TrainerEndpoint{.url = url,
                           .url_variable = prefix + "URL",
                           .token_variable = prefix + "TOKEN",
                           .token_file = value_or_empty(environment, prefix + "TOKEN"),
                           .ca_file = value_or_empty(environment, prefix + "CA_CERT")};
  }
  return std::nullopt;
}

Result<std::string> bearer_token(std::string_view file_text) {
  const std::string_view token = trimmed(file_text);
  if (token.empty()) return fail(ErrorCode::kInvalidArgument, "it is empty");
  if (token.size() > kTokenBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "it is longer than any token");
  }
  // Other characters could end this header and begin another one.
  if (!std::ranges::all_of(token, [](char c) { return c > ' ' && c < '\x7f'; })) {
    return fail(ErrorCode::kInvalidArgument, "it has bytes that a token cannot have");
  }
  return std::string(token);
}

std::optional<JobProgress> job_progress_of(const NodeSnapshot& node) {
  if (node.round.rank_offset != 0 || node.progress.empty()) return std::nullopt;
  const auto& progress = node.progress.front();
  if (!progress || !progress->step) return std::nullopt;
  // The hooks for Python count steps of programs that may report to Trainer by themselves, which
  // this report would replace.
  const bool is_the_programs = progress->step_kind == StepKind::kProgram ||
                               progress->total_steps > 0 || !progress->values.empty();
  if (!is_the_programs) return std::nullopt;
  return JobProgress{.step = *progress->step,
                     .total_steps = progress->total_steps,
                     .round = node.round.round,
                     .restarts = node.round.restarts,
                     .world_size = node.round.world_size,
                     .values = progress->values};
}

std::optional<std::chrono::seconds> RemainingTime::estimate(
    const JobProgress& progress, std::chrono::steady_clock::time_point now) {
  if (round_ != progress.round || progress.step < first_step_) {
    round_ = progress.round;
    first_step_ = progress.step;
    first_at_ = now;
  }
  if (progress.total_steps <= 0) return std::nullopt;
  // As floating point: a worker may report any two integers, and their difference could overflow.
  const double left =
      static_cast<double>(progress.total_steps) - static_cast<double>(progress.step);
  const double done = static_cast<double>(progress.step) - static_cast<double>(first_step_);
  if (left <= 0) return std::chrono::seconds(0);
  if (done <= 0) return std::nullopt;
  const std::chrono::duration<double> taken = now - first_at_;
  const double seconds = std::min(taken.count() / done * left, kSecondsMax);
  return std::chrono::seconds(static_cast<std::int64_t>(seconds));
}

std::string kubeflow_status(const JobProgress& progress,
                            std::optional<std::chrono::seconds> remaining,
                            std::chrono::system_clock::time_point now) {
  json::object status;
  if (progress.total_steps > 0) status["progressPercentage"] = percentage(progress);
  if (remaining) status["estimatedRemainingSeconds"] = remaining->count();
  json::array metrics;
  const auto add = [&metrics](std::string_view name, const std::string& value) {
    metrics.push_back(json::object{{"name", name}, {"value", value}});
  };
  add("step", std::to_string(progress.step));
  if (progress.total_steps > 0) add("total_steps", std::to_string(progress.total_steps));
  add("round", to_string(progress.round));
  add("restarts", std::to_string(progress.restarts));
  add("world_size", std::to_string(progress.world_size));
  for (const NamedValue& value : progress.values) add(value.name, number_text(value.value));
  status["metrics"] = std::move(metrics);
  status["lastUpdatedTime"] =
      time_text("%FT%TZ", now, &::gmtime_r);  // without fractions, as Kubernetes does
  return json::serialize(json::object{{"trainerStatus", std::move(status)}});
}

}  // namespace ddprun::agent
