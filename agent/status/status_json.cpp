// The status of a node and of a job as JSON. Each list of names has the order of its enumeration.
#include "agent/status/calls_json.h"
#include "agent/status/downtime_json.h"
#include "agent/status/job_status.h"
#include "agent/text/json_fields.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 5> kNames<NodeState>{"looking", "waiting", "running",
                                                                   "stopping", "ended"};
template <>
inline constexpr std::array<std::string_view, 5> kNames<WorkerState>{
    "not_started", "running", "succeeded", "failed", "stopped"};
template <>
inline constexpr std::array<std::string_view, 6> kNames<RestartReason>{
    "worker_failed", "node_lost", "node_left", "node_joined", "requested", "other"};
template <>
inline constexpr std::array<std::string_view, 6> kNames<rdzv::Hung::Why>{
    "stopped", "mismatch", "frozen", "uninterruptible", "cycle", "timeout"};
template <>
inline constexpr std::array<std::string_view, 5> kNames<MemberStatus::State>{
    "in_round", "waiting", "spare", "disconnected", "left_out"};

template <typename Enum>
static std::string_view named(Enum value) {
  return kNames<Enum>[static_cast<std::size_t>(value)];
}
std::string_view name_of(NodeState state) { return named(state); }
std::string_view name_of(WorkerState state) { return named(state); }
std::string_view name_of(RestartReason reason) { return named(reason); }
std::string_view name_of(MemberStatus::State state) { return named(state); }

// ---- a node

static void fields(JsonWriter& json, const ExitStatus& exit) {
  json("exit_code", exit.signal == 0 ? std::optional(exit.code) : std::nullopt);
  json("signal", OrNull{exit.signal});
  json("core_dumped", exit.core_dumped);
}

static void fields(const JsonReader& json, ExitStatus& exit) {
  json("signal", OrNull{exit.signal});
  if (exit.signal == 0) json("exit_code", exit.code);
  json("core_dumped", exit.core_dumped);
}

static void fields(auto& json, Is<WorkerStatus> auto& worker) {
  json("rank", worker.rank);
  json("local_rank", worker.local_rank);
  json("pid", OrNull{worker.pid});
  json("device", OrNull{worker.device});
  json("state", worker.state);
  json("exit", worker.exit);
  json("progress", worker.progress);
  json.may_lack("held", worker.held);
  json.may_lack("held_us", worker.held_for);
  json.may_lack("calls", worker.calls);
  json.may_lack("keeps_record", worker.keeps_record);
  json.may_lack("all_wait", worker.all_wait);
}

static void fields(auto& json, Is<HungStatus> auto& hung) {
  json("why", hung.why);
  json("ranks", hung.ranks);
  json("sentence", hung.sentence);
  json("waited_us", hung.waited);
}

static void fields(auto& json, Is<SlowStatus> auto& slow) {
  json("rank", slow.rank);
  json("share", slow.share);
  json("lag_us", slow.lag);
  json("step_us", slow.step);
  json("where", slow.where);
  json("sentence", slow.sentence);
}

static void fields(auto& json, Is<RankTimesStatus> auto& times) {
  json("rank", times.rank);
  json("in_calls", times.in_calls);
  json("waiting", times.waiting);
  json("outside", times.outside);
  json("late", times.late);
  json("lag_us", times.lag);
}

static void fields(auto& json, Is<RestartRecord> auto& record) {
  json("when_unix_us", record.when);
  json("round", record.round);
  json("reason", record.reason);
  json("rank", record.rank);
  json("host", OrNull{record.host});
  json("sentence", record.sentence);
  fields(json, record.downtime);
  json.may_lack("generation", record.generation);
}

static void fields(auto& json, Is<RestartTotal> auto& total) {
  json("reason", total.reason);
  json("count", total.count);
  json("downtime_us", total.downtime);
}

static void fields(auto& json, Is<ImportTime> auto& import) {
  json("module", import.module);
  json("time_us", import.time);
  json("can_be_preloaded", import.can_be_preloaded);
}

static void fields(auto& json, Is<StandbyStatus> auto& standbys) {
  json("waiting", standbys.waiting);
  json("wanted", standbys.wanted);
  json("why_none", standbys.why_none);
  json.may_lack("imports", standbys.imports);
}

static void fields(auto& json, Is<ReplacementStatus> auto& replacement) {
  json("can_recover", replacement.can_recover);
  json("waiting", replacement.waiting);
  json("wanted", replacement.wanted);
  json("generation", replacement.generation);
  json("why_none", replacement.why_none);
  json.may_lack("why_unprepared", replacement.why_unprepared);
}

static void fields(auto& json, Is<StoreStatus> auto& store) {
  json("requests", store.requests);
  json("connections", store.connections);
  json("keys", store.keys);
  json("memory_bytes", store.memory_bytes);
}

static void fields(auto& json, Is<GpuStatus> auto& gpu) {
  json("index", gpu.index);
  json("uuid", gpu.uuid);
  json("pci_address", gpu.pci_address);
  json("ranks", gpu.ranks);
  json("memory_used_bytes", gpu.memory_used);
  json("memory_total_bytes", gpu.memory_total);
  json("utilization_percent", gpu.utilization);
  json("temperature_celsius", gpu.temperature);
  json("ecc_uncorrected", gpu.ecc);
  json("xids", gpu.xids);
  json("trouble", gpu.trouble);
}

static void fields(auto& json, Is<NodeStatus> auto& status) {
  json.constant("schema", kStatusSchema);
  json("host", status.host);
  json("agent_pid", status.agent_pid);
  json("state", status.state);
  json("leads", status.leads);
  json("round", status.round);
  json("node_rank", status.node_rank);
  json("node_count", status.node_count);
  json("world_size", status.world_size);
  json("rank_offset", status.rank_offset);
  json("master_addr", status.master_addr);
  json("master_port", status.master_port);
  json("round_age_us", status.round_age);
  json("local_world_size", status.local_world_size);
  json("workers", status.workers);
  json("workers_left_out", status.workers_left_out);
  json("restarts", status.restarts);
  json("max_restarts", status.max_restarts);
  json.may_lack("restarts_in_place", status.restarts_in_place);
  json("wall_us", status.wall);
  json("until_run_us", status.until_run);
  json("until_first_step_us", status.until_first_step);
  fields(json, status.downtime);
  json("goodput", status.goodput);
  json("restart_totals", status.restart_totals);
  json("recent_restarts", status.recent_restarts);
  json.may_lack("longest_wait_us", status.longest_wait);
  json.may_lack("hung", status.hung);
  json.may_lack("slow", status.slow);
  json.may_lack("rank_times", status.rank_times);
  json.may_lack("gpus", status.gpus);
  json.may_lack("gpus_age_us", status.gpus_age);
  json.may_lack("gpu_trouble", status.gpu_trouble);
  json("store", status.store);
  json("standbys", status.standbys);
  json.may_lack("replacement", status.replacement);
  json("events", status.events);
}

// ---- the job

static void fields(auto& json, Is<MemberStatus> auto& member) {
  json("id", member.id);
  json("host", member.host);
  json("address", member.address);
  json("workers", member.workers);
  json("node_rank", member.node_rank);
  json("state", member.state);
  json.may_lack("leads", member.leads);
  json.may_lack("left_out", member.left_out);
}

static void fields(auto& json, Is<LeaderStatus::LeftOut> auto& host) {
  json("host", host.host);
  json("address", host.address);
  json("why", host.why);
}

static void fields(auto& json, Is<LeaderStatus> auto& leader) {
  json("state", leader.state);
  json("round", leader.round);
  json("min_nodes", leader.min_nodes);
  json("max_nodes", leader.max_nodes);
  json("missing", leader.missing);
  json.may_lack("has_exact_ranks", leader.has_exact_ranks);
  json("missing_ranks", leader.missing_ranks);
  json("left_us", leader.left);
  json("restarts", leader.restarts);
  json("max_restarts", leader.max_restarts);
  json.may_lack("is_finishing", leader.is_finishing);
  json.may_lack("left_out", leader.left_out);
  json("members", leader.members);
  json.may_lack("members_left_out", leader.members_left_out);
}

static void fields(auto& json, Is<LateNode> auto& node) {
  json("id", node.id);
  json("host", node.host);
  json("why", node.why);
}

static void fields(auto& json, Is<JobStatus> auto& status) {
  json.constant("schema", kStatusSchema);
  json("job", status.run_id);
  json("program", status.program);
  json("version", status.version);
  json("when_unix_us", status.when);
  json("asked_host", status.asked_host);
  json("leader", status.leader);
  json("nodes", status.nodes);
  json.may_lack("nodes_left_out", status.nodes_left_out);
  json("late", status.late);
}

// ---- texts

// Removes half of the list, or its older half; returns how many.
template <typename T>
static int halve(std::vector<T>& list, bool removes_older = false) {
  const auto left_out = static_cast<std::ptrdiff_t>((list.size() + 1) / 2);
  const auto begin = removes_older ? list.begin() : list.end() - left_out;
  list.erase(begin, begin + left_out);
  return static_cast<int>(left_out);
}

// Those that a worker is in are the first.
static bool has_cut_calls(NodeStatus& node) {
  constexpr std::size_t kKept = 8;
  bool has_cut = false;
  for (WorkerStatus& worker : node.workers) {
    has_cut |= worker.calls.size() > kKept;
    if (worker.calls.size() > kKept) worker.calls.resize(kKept);
  }
  return has_cut;
}

// Ranks that are late stay, as long as that helps.
static bool has_thinned_times(NodeStatus& node) {
  const auto before = node.rank_times.size();
  std::erase_if(node.rank_times, [](const RankTimesStatus& each) { return each.late == 0; });
  if (node.rank_times.size() < before) return true;
  return halve(node.rank_times) > 0;
}

static bool has_halved_workers(NodeStatus& node) {
  const int left_out = halve(node.workers);
  node.workers_left_out += left_out;
  return left_out > 0;
}

// False: nothing is left to remove.
static bool shorten(NodeStatus& status) {
  return halve(status.events, /*removes_older=*/true) > 0 ||
         !std::exchange(status.recent_restarts, {}).empty() || has_thinned_times(status) ||
         has_cut_calls(status) || has_halved_workers(status);
}

static bool shorten(JobStatus& status) {
  const auto of_any_node = [&](auto remove) {
    bool has_removed = false;
    for (NodeStatus& node : status.nodes) has_removed |= remove(node);
    return has_removed;
  };
  if (of_any_node([](auto& node) { return !std::exchange(node.events, {}).empty(); }) ||
      of_any_node([](auto& node) { return halve(node.recent_restarts, true) > 0; }) ||
      of_any_node(has_thinned_times) || of_any_node(has_cut_calls) ||
      of_any_node(has_halved_workers) || halve(status.late) > 0) {
    return true;
  }
  if (status.leader && !status.leader->members.empty()) {
    status.leader->members_left_out += halve(status.leader->members);
    return true;
  }
  const int left_out = halve(status.nodes);
  status.nodes_left_out += left_out;
  return left_out > 0;
}

template <typename Status>
static std::string within(Status status, std::size_t bytes_max) {
  std::string text = to_json(status);
  while (text.size() > bytes_max && shorten(status)) text = to_json(status);
  return text;
}

std::vector<rdzv::RankCalls> calls_of(const JobStatus& status) {
  std::vector<rdzv::RankCalls> calls;
  for (const NodeStatus& node : status.nodes) {
    if (node.round != status.nodes.front().round) continue;
    for (const WorkerStatus& worker : node.workers) {
      if (worker.state != WorkerState::kRunning) continue;
      const bool has_stepped = worker.progress && worker.progress->step;
      calls.push_back({worker.rank, worker.held, worker.held_for,
                       has_stepped ? std::optional(worker.progress->since_step) : std::nullopt,
                       worker.calls, worker.keeps_record, worker.all_wait});
    }
  }
  return calls;
}

std::string to_json(const NodeStatus& status) {
  return boost::json::serialize(JsonWriter::of(status));
}
std::string to_json(const JobStatus& status) {
  return boost::json::serialize(JsonWriter::of(status));
}
std::string to_json_within(NodeStatus status, std::size_t bytes_max) {
  return within(std::move(status), bytes_max);
}
std::string to_json_within(JobStatus status, std::size_t bytes_max) {
  return within(std::move(status), bytes_max);
}
Result<NodeStatus> node_status_from(std::string_view text) {
  return parse_json<NodeStatus>(text, "the status of a node");
}
Result<JobStatus> job_status_from(std::string_view text) {
  return parse_json<JobStatus>(text, "the status of a job");
}

}  // namespace ddprun::agent
