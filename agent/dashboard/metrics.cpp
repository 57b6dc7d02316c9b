#include "agent/dashboard/metrics.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "agent/dashboard/prometheus_text.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

using Type = PrometheusText::Type;

constexpr std::size_t kLabelBytesMax = 256;

double seconds(std::chrono::duration<double> time) { return time.count(); }
std::string label(std::string_view text) { return as_utf8(text, kLabelBytesMax); }

// Calls `each` with every value of an enumeration that counts from 0.
template <typename Enum>
void for_each_up_to(Enum last, const auto& each) {
  for (int value = 0; value <= static_cast<int>(last); ++value) each(static_cast<Enum>(value));
}

void put_job(PrometheusText& text, const NodeStatus& status, const JobIdentity& job) {
  text.gauge("ddprun_info", "The job and version that run here; always 1.", 1,
             {{"run_id", label(job.run_id)},
              {"program", label(job.program)},
              {"host", label(status.host)},
              {"version", label(job.version)}});
  text.gauge("ddprun_world_size", "Workers of all nodes in the current or last round.",
             status.world_size);
  text.gauge("ddprun_nodes", "Nodes of the current or last round.", status.node_count);
  text.gauge("ddprun_node_rank", "The rank of this node among them.", status.node_rank);
  text.gauge("ddprun_leads", "1 if this node leads the job.", status.leads);
  text.gauge("ddprun_round", "The number of the current or last round, from 0.",
             status.round ? number(*status.round) : 0);
  text.family("ddprun_node_state", Type::kGauge, "1 for the state that this node is in.");
  for_each_up_to(NodeState::kEnded, [&](NodeState state) {
    text.sample(status.state == state, {{"state", name_of(state)}});
  });
  text.family("ddprun_workers", Type::kGauge, "Workers of this node by state.");
  for_each_up_to(WorkerState::kStopped, [&](WorkerState state) {
    const auto count = std::ranges::count(status.workers, state, &WorkerStatus::state);
    text.sample(static_cast<double>(count), {{"state", name_of(state)}});
  });
}

RestartTotal total_of(const NodeStatus& status, RestartReason reason) {
  const auto found = std::ranges::find(status.restart_totals, reason, &RestartTotal::reason);
  return found == status.restart_totals.end() ? RestartTotal{reason, 0, {}} : *found;
}

void put_restarts(PrometheusText& text, const NodeStatus& status) {
  text.family("ddprun_restarts_total", Type::kCounter,
              "Restarts of the job by reason; all nodes have the same number.");
  for_each_up_to(RestartReason::kOther, [&](RestartReason reason) {
    text.sample(total_of(status, reason).count, {{"reason", name_of(reason)}});
  });
  text.counter("ddprun_restarts_in_place_total",
               "Restarts of the job in which one worker was replaced and the others went on.",
               status.restarts_in_place);
  if (status.replacement) {
    text.gauge("ddprun_prepared_standbys",
               "Processes of this node that can take the place of a worker at once.",
               status.replacement->waiting);
  }
  text.gauge("ddprun_restart_budget", "Restarts that --max-restarts allows.", status.max_restarts);
  text.gauge("ddprun_restart_budget_spent", "Restarts of --max-restarts that are used.",
             status.restarts);
  text.family("ddprun_downtime_seconds_total", Type::kCounter,
              "Time from what ended a round until every rank of this node has committed the step "
              "after it, by cause; the start of the job is none.");
  for_each_up_to(RestartReason::kOther, [&](RestartReason reason) {
    text.sample(seconds(total_of(status, reason).downtime), {{"cause", name_of(reason)}});
  });
  text.family("ddprun_downtime_part_seconds_total", Type::kCounter,
              "The same of all restarts, by its part.");
  text.sample(seconds(status.downtime.stopped), {{"part", "stopped"}});
  text.sample(seconds(status.downtime.started), {{"part", "started"}});
  text.sample(seconds(status.downtime.joined), {{"part", "joined"}});
  text.sample(seconds(status.downtime.repeated), {{"part", "repeated"}});
  if (status.downtime.steps_repeated) {
    text.counter("ddprun_steps_repeated_total", "Steps that were done again after restarts.",
                 static_cast<double>(*status.downtime.steps_repeated));
  }
  text.gauge("ddprun_uptime_seconds", "Time since the start of this agent.", seconds(status.wall));
  text.gauge("ddprun_start_seconds",
             "Time from the start of this agent until the first step of its ranks.",
             seconds(status.until_first_step));
  if (status.goodput) {
    text.gauge("ddprun_goodput_ratio",
               "Share of the time since the first step that moved the job forward.",
               *status.goodput);
  }
}

void put_store(PrometheusText& text, const NodeStatus& status) {
  if (!status.store) return;
  text.counter("ddprun_store_requests_total", "Requests to the store of this round.",
               static_cast<double>(status.store->requests));
  text.gauge("ddprun_store_connections", "Open connections of the store.",
             static_cast<double>(status.store->connections));
  text.gauge("ddprun_store_keys", "Keys in the store.", static_cast<double>(status.store->keys));
  text.gauge("ddprun_store_memory_bytes", "Memory of the store's keys and values.",
             static_cast<double>(status.store->memory_bytes));
}

// One family with the samples of all workers: `values` returns those of one, with their names or
// without.
template <typename Values>
void put_each(PrometheusText& text, const NodeStatus& status, std::string_view name, Type type,
              std::string_view help, Values values) {
  bool has_begun = false;
  for (const WorkerStatus& worker : status.workers) {
    if (!worker.progress) continue;
    const std::string rank = std::to_string(worker.rank);
    const std::string local_rank = std::to_string(worker.local_rank);
    for (const NamedValue& each : values(*worker.progress)) {
      if (!std::exchange(has_begun, true)) text.family(name, type, help);
      if (each.name.empty()) {
        text.sample(each.value, {{"rank", rank}, {"local_rank", local_rank}});
      } else {
        text.sample(each.value,
                    {{"rank", rank}, {"local_rank", local_rank}, {"name", label(each.name)}});
      }
    }
  }
}

void put_progress(PrometheusText& text, const NodeStatus& status) {
  using Values = std::vector<NamedValue>;
  const auto one_if = [](bool is_known, auto value) {
    return is_known ? Values{{"", static_cast<double>(value)}} : Values();
  };
  put_each(text, status, "ddprun_worker_step", Type::kGauge, "Steps that the worker has done.",
           [&](const WorkerProgress& worker) {
             return one_if(worker.step.has_value(), worker.step.value_or(0));
           });
  put_each(text, status, "ddprun_worker_steps_planned", Type::kGauge,
           "Steps that the worker will do in total.", [&](const WorkerProgress& worker) {
             return one_if(worker.total_steps > 0, worker.total_steps);
           });
  put_each(text, status, "ddprun_worker_seconds_since_step", Type::kGauge,
           "Time since the worker's last step.", [&](const WorkerProgress& worker) {
             return one_if(worker.step.has_value(), seconds(worker.since_step));
           });
  put_each(text, status, "ddprun_worker_collectives_total", Type::kCounter,
           "Collectives that the worker has begun.",
           [&](const WorkerProgress& worker) { return one_if(true, worker.collectives); });
  put_each(text, status, "ddprun_worker_value", Type::kGauge,
           "Other values that the worker reports, by name.",
           [](const WorkerProgress& worker) { return worker.values; });
}

// The first node of a round has these of the whole job.
void put_times(PrometheusText& text, const NodeStatus& status) {
  text.gauge("ddprun_slow_ranks",
             "Ranks of the job that compute slowly: they come last to collectives in most steps.",
             static_cast<double>(status.slow.size()));
  const auto each = [&](const char* name, const char* help, const auto& value_of) {
    bool has_begun = false;
    for (const RankTimesStatus& times : status.rank_times) {
      const std::optional<double> value = value_of(times);
      if (!value) continue;
      if (!std::exchange(has_begun, true)) text.family(name, Type::kGauge, help);
      text.sample(*value, {{"rank", std::to_string(times.rank)}});
    }
  };
  using Value = std::optional<double>;
  each("ddprun_rank_late_ratio", "Share of the last minute's steps in which the rank came last.",
       [](const RankTimesStatus& times) { return Value(times.late); });
  each("ddprun_rank_lag_seconds", "How late it then came, the median.",
       [](const RankTimesStatus& times) { return Value(seconds(times.lag)); });
  each("ddprun_rank_waiting_ratio",
       "Share of the last minute for which the rank waited in collectives for others.",
       [](const RankTimesStatus& times) { return Value(times.waiting); });
  each("ddprun_rank_in_collectives_ratio",
       "Share of the last minute for which the rank was in collectives.",
       [](const RankTimesStatus& times) { return times.in_calls; });
}

// Of those that are in a collective, also where it has just begun.
void put_waits(PrometheusText& text, const NodeStatus& status) {
  std::set<int> hung;
  for (const HungStatus& each : status.hung) hung.insert(each.ranks.begin(), each.ranks.end());
  text.gauge("ddprun_hung_ranks",
             "Ranks of the job that this agent has found to hang, as long as others wait.",
             static_cast<double>(hung.size()));
  bool has_begun = false;
  for (const WorkerStatus& worker : status.workers) {
    if (worker.calls.empty()) continue;
    const auto& at = worker.calls.front().at;
    if (!std::exchange(has_begun, true)) {
      text.family("ddprun_worker_seconds_in_collective", Type::kGauge,
                  "Time since the worker entered the collective that it is in; 0: it is in none.");
    }
    text.sample(
        at && !at->is_over ? seconds(at->since) : 0,
        {{"rank", std::to_string(worker.rank)}, {"local_rank", std::to_string(worker.local_rank)}});
  }
}

// There is none where the job uses no GPU.
void put_gpus(PrometheusText& text, const NodeStatus& status) {
  using Value = std::optional<double>;
  const auto each = [&](const char* name, const char* help, const auto& value_of) {
    bool has_begun = false;
    for (const GpuStatus& gpu : status.gpus) {
      const Value value = value_of(gpu);
      if (!value) continue;
      if (!std::exchange(has_begun, true)) text.family(name, Type::kGauge, help);
      text.sample(*value, {{"gpu", std::to_string(gpu.index)}, {"uuid", label(gpu.uuid)}});
    }
  };
  each("ddprun_gpu_memory_used_bytes", "Memory of the GPU that is in use, by any process.",
       [](const GpuStatus& gpu) { return Value(gpu.memory_used); });
  each("ddprun_gpu_memory_total_bytes", "Memory of the GPU.",
       [](const GpuStatus& gpu) { return Value(gpu.memory_total); });
  each("ddprun_gpu_utilization_ratio", "Share of the last second in which a kernel ran.",
       [](const GpuStatus& gpu) {
         return gpu.utilization ? Value(*gpu.utilization / 100.0) : Value();
       });
  each("ddprun_gpu_temperature_celsius", "Temperature of the GPU.",
       [](const GpuStatus& gpu) { return Value(gpu.temperature); });
  each("ddprun_gpu_ecc_uncorrected", "ECC errors that were not corrected, since the round began.",
       [](const GpuStatus& gpu) { return Value(gpu.ecc); });
  each("ddprun_gpu_xids", "Different Xids of the GPU since the round began.",
       [](const GpuStatus& gpu) { return Value(static_cast<double>(gpu.xids.size())); });
}

}  // namespace

std::string metrics_text(const NodeStatus& status, const JobIdentity& job) {
  PrometheusText text;
  put_job(text, status, job);
  put_restarts(text, status);
  put_store(text, status);
  put_progress(text, status);
  put_waits(text, status);
  put_times(text, status);
  put_gpus(text, status);
  return text.take();
}

}  // namespace ddprun::agent
