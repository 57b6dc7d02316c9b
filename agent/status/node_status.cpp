#include "agent/status/node_status.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "agent/status/status_json.h"

namespace ddprun::agent {
namespace {

using namespace status_json;
using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr std::array<std::string_view, 5> kNodeStates{"looking", "waiting", "running", "stopping",
                                                      "ended"};
constexpr std::array<std::string_view, 5> kWorkerStates{"not_started", "running", "succeeded",
                                                        "failed", "stopped"};
constexpr std::array<std::string_view, 6> kReasons{"worker_failed", "node_lost", "node_left",
                                                   "node_joined",   "requested", "other"};

json::value exit_value(const std::optional<ExitStatus>& exit) {
  if (!exit) return nullptr;
  return json::object{{"exit_code", exit->signal == 0 ? json::value(exit->code) : nullptr},
                      {"signal", exit->signal != 0 ? json::value(exit->signal) : nullptr},
                      {"core_dumped", exit->core_dumped}};
}

std::optional<ExitStatus> exit_from(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const Reader from(value);
  ExitStatus exit = from.has("signal") ? ExitStatus::killed(from.number<int>("signal"))
                                       : ExitStatus::exited(from.number<int>("exit_code"));
  exit.core_dumped = from.truth("core_dumped");
  return exit;
}

std::optional<WorkerProgress> progress_from(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  constexpr std::array<std::string_view, 6> kPhases{"unknown",    "joining", "running",
                                                    "collective", "saving",  "leaving"};
  const Reader from(value);
  WorkerProgress progress;
  progress.step = from.maybe_number<std::int64_t>("step");
  progress.total_steps = from.number<std::int64_t>("total_steps");
  // The value comes from another node: limit it, so that the subtraction cannot overflow.
  const auto since = [&](std::string_view name) {
    return std::clamp<microseconds>(from.us(name), 0us, std::chrono::years(10));
  };
  progress.since_step = since("since_step_us");
  progress.phase = from.one_of<WorkerPhase>(kPhases, "phase");
  progress.since_phase = since("since_phase_us");
  progress.collectives = from.number<std::uint64_t>("collectives");
  for (const auto& each : from.at("values").as_object()) {
    const double read = each.value().is_null() ? std::nan("") : each.value().to_number<double>();
    progress.values.push_back({std::string(each.key()), read});
  }
  return progress;
}

json::value worker_value(const WorkerStatus& worker) {
  return json::object{{"rank", worker.rank},
                      {"local_rank", worker.local_rank},
                      {"pid", worker.pid != 0 ? json::value(worker.pid) : nullptr},
                      {"device", worker.device.empty() ? nullptr : text(worker.device)},
                      {"state", text(name_of(worker.state))},
                      {"exit", exit_value(worker.exit)},
                      {"progress", json_progress(worker.progress)}};
}

WorkerStatus worker_from(const json::value& value) {
  const Reader from(value);
  WorkerStatus worker;
  worker.rank = from.number<int>("rank");
  worker.local_rank = from.number<int>("local_rank");
  worker.pid = from.maybe_number<int>("pid").value_or(0);
  if (from.has("device")) worker.device = from.text("device");
  worker.state = from.one_of<WorkerState>(kWorkerStates, "state");
  worker.exit = exit_from(from.at("exit"));
  worker.progress = progress_from(from.at("progress"));
  return worker;
}

json::value record_value(const RestartRecord& record) {
  return json::object{{"when_unix_us", unix_us(record.when)},
                      {"round", number(record.round)},
                      {"reason", text(name_of(record.reason))},
                      {"rank", or_null(record.rank)},
                      {"host", record.host.empty() ? nullptr : text(record.host)},
                      {"sentence", text(record.sentence)},
                      {"lost_us", in_us(record.lost)}};
}

RestartRecord record_from(const json::value& value) {
  const Reader from(value);
  RestartRecord record;
  record.when = from.unix_us("when_unix_us");
  record.round = Round{from.number<std::uint32_t>("round")};
  record.reason = from.one_of<RestartReason>(kReasons, "reason");
  record.rank = from.maybe_number<int>("rank");
  if (from.has("host")) record.host = from.text("host");
  record.sentence = from.text("sentence");
  record.lost = from.us("lost_us");
  return record;
}

json::value total_value(const RestartTotal& total) {
  return json::object{{"reason", text(name_of(total.reason))},
                      {"count", total.count},
                      {"lost_us", in_us(total.lost)}};
}

RestartTotal total_from(const json::value& value) {
  const Reader from(value);
  return {from.one_of<RestartReason>(kReasons, "reason"), from.number<int>("count"),
          from.us("lost_us")};
}

json::value store_value(const std::optional<StoreStatus>& store) {
  if (!store) return nullptr;
  return json::object{{"requests", store->requests},
                      {"connections", store->connections},
                      {"keys", store->keys},
                      {"memory_bytes", store->memory_bytes}};
}

std::optional<StoreStatus> store_from(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const Reader from(value);
  return StoreStatus{from.number<std::uint64_t>("requests"),
                     from.number<std::uint64_t>("connections"), from.number<std::uint64_t>("keys"),
                     from.number<std::uint64_t>("memory_bytes")};
}

// Null for a line that is no JSON (event_line() makes none), because it would make the whole invalid.
json::value event_value(const std::string& line) {
  boost::system::error_code ec;
  json::value event = json::parse(json::string_view(line.data(), line.size()), ec);
  return ec ? json::value(nullptr) : event;
}

template <typename T>
json::array array_of(const std::vector<T>& values, json::value (*one)(const T&)) {
  json::array array;
  array.reserve(values.size());
  for (const T& value : values) array.push_back(one(value));
  return array;
}

template <typename T>
std::vector<T> vector_from(const json::array& array, T (*one)(const json::value&)) {
  std::vector<T> values;
  values.reserve(array.size());
  for (const json::value& value : array) values.push_back(one(value));
  return values;
}

std::string event_from(const json::value& value) { return json::serialize(value); }

}  // namespace

std::string_view name_of(NodeState state) { return kNodeStates[static_cast<std::size_t>(state)]; }

std::string_view name_of(WorkerState state) {
  return kWorkerStates[static_cast<std::size_t>(state)];
}

std::string_view name_of(RestartReason reason) {
  return kReasons[static_cast<std::size_t>(reason)];
}

json::value status_json::value_of(const NodeStatus& status) {
  return json::object{
      {"schema", kStatusSchema},
      {"host", text(status.host)},
      {"agent_pid", status.agent_pid},
      {"state", text(name_of(status.state))},
      {"leads", status.leads},
      {"round", status.round ? json::value(number(*status.round)) : nullptr},
      {"node_rank", status.node_rank},
      {"node_count", status.node_count},
      {"world_size", status.world_size},
      {"rank_offset", status.rank_offset},
      {"master_addr", text(status.master_addr)},
      {"master_port", status.master_port},
      {"round_age_us", in_us(status.round_age)},
      {"local_world_size", status.local_world_size},
      {"workers", array_of(status.workers, worker_value)},
      {"workers_left_out", status.workers_left_out},
      {"restarts", status.restarts},
      {"max_restarts", status.max_restarts},
      {"wall_us", in_us(status.wall)},
      {"until_run_us", in_us(status.until_run)},
      {"lost_us", in_us(status.lost)},
      {"restart_totals", array_of(status.restart_totals, total_value)},
      {"recent_restarts", array_of(status.recent_restarts, record_value)},
      {"store", store_value(status.store)},
      {"events", array_of(status.events, event_value)},
  };
}

NodeStatus status_json::node_status_from(const json::value& value) {
  const Reader from(value);
  NodeStatus status;
  status.host = from.text("host");
  status.agent_pid = from.number<int>("agent_pid");
  status.state = from.one_of<NodeState>(kNodeStates, "state");
  status.leads = from.truth("leads");
  if (from.has("round")) status.round = Round{from.number<std::uint32_t>("round")};
  status.node_rank = from.number<int>("node_rank");
  status.node_count = from.number<int>("node_count");
  status.world_size = from.number<int>("world_size");
  status.rank_offset = from.number<int>("rank_offset");
  status.master_addr = from.text("master_addr");
  status.master_port = from.number<std::uint16_t>("master_port");
  status.round_age = from.us("round_age_us");
  status.local_world_size = from.number<int>("local_world_size");
  status.workers = vector_from(from.list("workers"), worker_from);
  status.workers_left_out = from.number<int>("workers_left_out");
  status.restarts = from.number<int>("restarts");
  status.max_restarts = from.number<int>("max_restarts");
  status.wall = from.us("wall_us");
  status.until_run = from.us("until_run_us");
  status.lost = from.us("lost_us");
  status.restart_totals = vector_from(from.list("restart_totals"), total_from);
  status.recent_restarts = vector_from(from.list("recent_restarts"), record_from);
  status.store = store_from(from.at("store"));
  status.events = vector_from(from.list("events"), event_from);
  return status;
}

std::string to_json(const NodeStatus& status) { return json::serialize(value_of(status)); }

std::string to_json_within(NodeStatus status, std::size_t bytes_max) {
  for (;;) {
    std::string text = to_json(status);
    if (text.size() <= bytes_max) return text;
    auto& events = status.events;
    if (!events.empty()) {
      events.erase(events.begin(), events.end() - static_cast<std::ptrdiff_t>(events.size() / 2));
    } else if (!status.recent_restarts.empty()) {
      status.recent_restarts.clear();
    } else {
      const std::size_t kept = status.workers.size() / 2;
      status.workers_left_out += static_cast<int>(status.workers.size() - kept);
      status.workers.resize(kept);
      if (kept == 0) return to_json(status);
    }
  }
}

Result<NodeStatus> node_status_from(std::string_view text) {
  return parse_status(text, "the status of a node", [](const json::value& value) {
    return status_json::node_status_from(value);
  });
}

}  // namespace ddprun::agent
