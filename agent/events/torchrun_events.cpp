#include "agent/events/torchrun_events.h"

#include <boost/json.hpp>

#include "agent/text/json_text.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kTextBytesMax = std::size_t{64} * 1024;

json::value text(std::string_view bytes) { return json_text(bytes, kTextBytesMax); }

struct WorkerFields {
  int local_rank = 0;
  int pid = 0;
  std::optional<rdzv::WorkerFailure> failure;
};

// The field "metadata" inside of a record's metadata: JSON as a string.
std::string inner_metadata(const TorchrunScene& scene, const WorkerFields* worker) {
  const rdzv::RoundStart& round = scene.round;
  const std::string& program = scene.job.program.path;
  json::object inner{
      {"group_world_size", round.world_size == 0 ? nullptr : json::value(round.node_count)},
      {"entry_point", text(std::string_view(program).substr(program.rfind('/') + 1))}};
  if (worker != nullptr) {
    const auto& failure = worker->failure;
    json::value exit_code;
    if (failure)
      exit_code = failure->status.signal != 0 ? -failure->status.signal : failure->status.code;
    inner["local_rank"] = json::array{worker->local_rank};
    inner["role_rank"] = json::array{round.role_rank_offset + worker->local_rank};
    inner["role_world_size"] = json::array{round.role_world_size};
    // Not with braces: json::array{value} may copy a nested array instead of making one.
    inner["exit_code"] = json::array(1, exit_code);
    inner["worker_pid"] = json::array(1, failure ? json::value(failure->pid) : nullptr);
  }
  return json::serialize(inner);
}

std::string record(const TorchrunScene& scene, std::string_view state, const WorkerFields* worker,
                   const json::value& raw_error,
                   std::optional<std::chrono::microseconds> duration) {
  const rdzv::RoundStart& round = scene.round;
  const auto in_ms = [](auto time) { return static_cast<double>(time.count()) / 1000; };
  json::object metadata{
      {"run_id", text(scene.job.run_id)},
      {"global_rank", worker ? json::value(round.rank_offset + worker->local_rank) : nullptr},
      {"group_rank", round.world_size == 0 ? nullptr : json::value(round.node_rank)},
      {"worker_id", worker ? text(std::to_string(worker->pid)) : nullptr},
      {"role", text(scene.job.role)},
      {"hostname", text(scene.host)},
      {"state", text(state)},
      {"total_run_time", scene.run_time.count()},
      {"rdzv_backend", text(scene.job.events.rdzv_backend)},
      {"raw_error", raw_error},
      {"metadata", text(inner_metadata(scene, worker))},
      {"agent_restarts", round.restarts},
      {"duration_ms", duration ? json::value(in_ms(*duration)) : nullptr}};
  return json::serialize(
             json::object{{"name", text("torchelastic.worker.status." + std::string(state))},
                          {"source", worker ? "WORKER" : "AGENT"},
                          {"timestamp", 0},
                          {"metadata", std::move(metadata)}}) +
         "\n";
}

json::value raw_error_of(const rdzv::WorkerFailure& failure) {
  json::object error;
  error["message"] = text(failure.message.empty() ? "<NONE>" : failure.message);
  if (failure.message.empty()) {
    error["errorTraits"] =
        json::object{{"category", "system_terminated_error"}, {"retryability", "False"}};
  }
  return text(json::serialize(error));
}

}  // namespace

std::string torchrun_agent_line(const TorchrunScene& scene, std::string_view state,
                                std::optional<std::chrono::microseconds> duration,
                                std::string_view raw_error) {
  return record(scene, state, nullptr, raw_error.empty() ? nullptr : text(raw_error), duration);
}

std::string torchrun_start_line(const TorchrunScene& scene, int local_rank, int pid) {
  const WorkerFields worker{local_rank, pid, {}};
  return record(scene, "START", &worker, nullptr, std::nullopt);
}

std::string torchrun_end_line(const TorchrunScene& scene, int local_rank, int pid,
                              bool has_job_succeeded,
                              const std::optional<rdzv::WorkerFailure>& failure) {
  const WorkerFields worker{local_rank, pid, failure};
  if (failure) return record(scene, "FAILED", &worker, raw_error_of(*failure), std::nullopt);
  return record(scene, has_job_succeeded ? "SUCCEEDED" : "TERMINATED", &worker, nullptr,
                std::nullopt);
}

}  // namespace ddprun::agent
