#include "agent/events/event_lines.h"

#include "agent/failure/failure_report.h"
#include "agent/status/downtime_json.h"
#include "agent/text/json_fields.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/text/time_text.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 7> kNames<rdzv::NodeGone::How>{
    "disconnected", "silent", "replaced", "left", "stuck", "unresponsive", "left_out"};

namespace {

std::string utc(std::chrono::system_clock::time_point time) {
  char fraction[16];
  std::snprintf(fraction, sizeof fraction, ".%06dZ",
                static_cast<int>(in_us(time.time_since_epoch()) % 1'000'000));
  return time_text("%FT%T", time, &::gmtime_r) + fraction;
}

std::string_view name_of(const rdzv::JobOutcome& outcome) {
  constexpr std::string_view kOutcomes[] = {"succeeded", "failed", "stopped", "cannot_run"};
  const bool is_preempted =
      outcome.kind == rdzv::JobOutcome::Kind::kStopped && outcome.exit_code == kExitPreempted;
  return is_preempted ? "preempted" : kOutcomes[static_cast<std::size_t>(outcome.kind)];
}

// Why the job ended; more precise than the outcome.
std::string_view reason_of(const rdzv::JobOutcome& outcome) {
  using Kind = rdzv::JobOutcome::Kind;
  if (outcome.kind == Kind::kFailed) {
    if (outcome.cause && was_stopped_for_nan(*outcome.cause)) return "nan";
    // A worker may end with any code.
    const bool is_workers =
        !outcome.cause || outcome.cause->status.as_shell_code() == outcome.exit_code;
    return outcome.exit_code == kExitNoProgress && !is_workers ? "no_progress" : "worker_failed";
  }
  if (outcome.kind == Kind::kStopped) {
    return outcome.exit_code == kExitPreempted ? "preemption" : "signal";
  }
  if (outcome.kind != Kind::kCannotRun) return "all_succeeded";
  constexpr std::pair<int, std::string_view> kReasons[] = {
      {kExitUsage, "refused_by_leader"},
      {kExitRendezvousTimeout, "rendezvous_timeout"},
      {kExitLeaderLost, "leader_lost"},
      {kExitBelowMinimum, "below_minimum"},
      {kExitWorkerStuck, "worker_stuck"}};
  for (const auto& [code, reason] : kReasons) {
    if (code == outcome.exit_code) return reason;
  }
  return "cannot_run";
}

std::string_view how(bool is_in_place) { return is_in_place ? "replaced" : "restarted"; }

constexpr std::array kEventNames{"job_started",
                                 "round_started",
                                 "worker_exited",
                                 "round_stopping",
                                 "restarted",
                                 "signal",
                                 "worker_killed_after_grace",
                                 "keeper_replaced",
                                 "finished",
                                 "events_lost",
                                 "requested",
                                 "recovered",
                                 "waiting_for",
                                 "hung",
                                 "hang_report",
                                 "replicas_differ",
                                 "preempt_notice",
                                 "slow",
                                 "health",
                                 "unfit_node",
                                 "left_out",
                                 "nan"};
static_assert(kEventNames.size() == std::variant_size_v<JobEvent>, "in the order of the variant");

}  // namespace

// ---- parts of events

static void fields(JsonWriter& line, const ExitStatus& status) {
  const bool by_signal = status.signal != 0;
  line("exit_code", by_signal ? std::nullopt : std::optional(status.code));
  line("signal", OrNull{status.signal});
  line("signal_name", by_signal ? std::optional(signal_name(status.signal)) : std::nullopt);
  line("core_dumped", status.core_dumped);
}

static void fields(JsonWriter& line, const RoundStarted::Worker& worker) {
  line("rank", worker.rank);
  line("local_rank", worker.local_rank);
  line("pid", OrNull{worker.pid});
}

static void fields(JsonWriter& object, const rdzv::WorkerFailure& failure) {
  fields(object, RoundStarted::Worker{failure.rank, failure.local_rank, failure.pid});
  object("node_rank", failure.node_rank);
  object("host", failure.host);
  fields(object, failure.status);
  object("killed_for_memory", failure.killed_for_memory);
  object("message", failure.message);
  object("hang", OrNull{failure.hang});
  object("asked_by", OrNull{failure.asked_by});
}

static void fields(JsonWriter& object, const rdzv::NodeGone& gone) {
  object("node_rank", gone.node_rank);
  object("host", gone.host);
  object("how", gone.how);
  object("why", OrNull{gone.why});
}

// ---- events

static void fields(JsonWriter& line, const JobStarted& event) {
  line("program", event.program);
  line("workers", event.workers);
  line("max_restarts", event.max_restarts);
  line("pid", event.pid);
}

static void fields(JsonWriter& line, const RoundStarted& event) {
  line("round", event.round);
  line("master_addr", event.master_addr);
  line("master_port", event.master_port);
  line("workers", event.workers);
  line("since_cause_us", event.since_cause);
  line("node_rank", event.node_rank);
  line("node_count", event.node_count);
  line("world_size", event.world_size);
}

static void fields(JsonWriter& line, const WorkerExited& event) {
  line("round", event.round);
  fields(line, event.worker);
  fields(line, event.status);
  line("was_told_to_stop", event.was_told_to_stop);
  line("killed_for_memory", event.killed_for_memory);
  line("message", event.message);
  line("progress", event.progress);
}

static void fields(JsonWriter& line, const RoundStopping& event) {
  line("round", event.round);
  line("reason", event.reason);
}

static void fields(JsonWriter& line, const Restarted& event) {
  line("round", event.round);
  line("restart", event.restart);
  line("max_restarts", event.max_restarts);
  line("failure", event.failure);
  line("until_run_us", event.until_run);
  line("lost_node", event.lost_node);
  line("nodes_gone", event.nodes_gone);
  line("nodes_joined", event.nodes_joined);
  line("was_asked_for", event.was_asked_for);
  line("asked_by", OrNull{event.asked_by});
  line("how", how(event.in_place.has_value()));
  const auto in_place = event.in_place.value_or(Restarted::InPlace());
  line("generation", event.in_place ? std::optional(in_place.generation) : std::nullopt);
  line("newcomer", in_place.newcomer);
}

static void fields(JsonWriter& line, const SignalReceived& event) {
  line("signal", event.signal);
  line("signal_name", signal_name(event.signal));
}

static void fields(JsonWriter& line, const PreemptNotice& event) {
  line("from", event.from);
  line("instance", OrNull{event.instance});
  line("at", event.at ? std::optional(utc(*event.at)) : std::nullopt);
  line("sentence", event.sentence);
}

static void fields(JsonWriter& line, const WorkerKilledAfterGrace& event) {
  line("round", event.round);
  fields(line, event.worker);
  line("grace_us", event.grace);
}

static void fields(JsonWriter& line, const KeeperReplaced& event) { line("pid", event.pid); }

static void fields(JsonWriter& line, const ReplicasDiffer& event) {
  line("round", event.round);
  line("step", event.step);
  line("ranks", std::vector{event.rank, event.other});
  line("sentence", event.sentence);
}

// JSON has no NaN.
static void fields(JsonWriter& line, const NanReported& event) {
  line("round", event.round);
  line("rank", event.rank);
  line("step", event.step);
  line("name", event.value.name);
  line("value", number_text(event.value.value));
  line("sentence", event.sentence);
}

static void fields(JsonWriter& line, const JobFinished& event) {
  line("outcome", name_of(event.outcome));
  line("exit_code", event.exit_code);
  line("signal", OrNull{event.outcome.stop_signal});
  line("cause", event.outcome.cause);
  line("why", event.outcome.sentence);
  line("wall_us", event.wall);
  line("restarts", event.outcome.restarts);
  fields(line, event.downtime);
  line("goodput", event.goodput);
  line("reason", reason_of(event.outcome));
  line("lost_node", event.outcome.lost_node);
  boost::json::array requests;
  for (const std::string& request : event.outcome.requests) {
    requests.push_back(JsonWriter::of(request));
  }
  line.object["requests"] = std::move(requests);
}

static void fields(JsonWriter& line, const EventsLost& event) { line("count", event.count); }
static void fields(JsonWriter& line, const Requested& event) {
  line("what", event.what);
  line("by", event.by);
}

static void fields(JsonWriter& line, const Recovered& event) {
  line("round", event.round);
  fields(line, event.downtime);
  line("how", how(event.generation.has_value()));
  line("generation", event.generation);
}

static void fields(JsonWriter& line, const WaitSeen& event) {
  line("round", event.round);
  line("ranks", event.wait.missing);
  line("waiting", event.wait.waiting);
  line("group", event.wait.group);
  line("call", name_of(event.wait.operation));
  line("number", event.wait.number);
  line("waited_us", event.wait.waited);
  line("sentence", sentence(event.wait));
}

static void fields(JsonWriter& line, const HangSeen& event) {
  line("round", event.round);
  line("ranks", event.hung.ranks);
  line("why", name_of(event.hung.why));
  line("group", event.hung.group);
  line("number", event.hung.number);
  line("waiting", event.hung.waiting);
  line("waited_us", event.hung.waited);
  line("sentence", sentence(event.hung));
}

static void fields(JsonWriter& line, const SlowSeen& event) {
  line("round", event.round);
  line("rank", event.slow.rank);
  line("on_host", event.host);
  line("share", event.slow.share);
  line("lag_us", event.slow.lag);
  line("step_us", event.slow.step);
  line("where", event.where);
  line("sentence", sentence(event.slow, event.host, event.where));
}

static void fields(JsonWriter& line, const HealthSeen& event) {
  line("severity", event.severity);
  line("sentence", event.sentence);
}

static void fields(JsonWriter& line, const NodeLeftOut& event) {
  line("node", event.node);
  line("why", event.why);
}

static void fields(JsonWriter& line, const UnfitNode& event) {
  line("node", event.node);
  line("why", event.why);
}

static void fields(JsonWriter& json, const RanksAlike& group) {
  json("ranks", group.ranks);
  boost::json::array hosts;
  for (const std::string& host : group.hosts) hosts.push_back(JsonWriter::of(host));
  json.object["hosts"] = std::move(hosts);
  json("pid", OrNull{group.pid});
  json("state", group.state);
  json("call", group.call);
  json("since_us", group.since);
  json("step", group.step);
  json("since_step_us", group.step ? std::optional(group.since_step) : std::nullopt);
  json("stack", Whole{group.stack});
  json("trouble", group.trouble);
}

static void fields(JsonWriter& line, const HangReported& event) {
  // A thousand ranks may have different stacks.
  const auto first = [](std::vector<RanksAlike> groups) {
    constexpr std::size_t kGroupsMax = 8;
    if (groups.size() > kGroupsMax) groups.erase(groups.begin() + kGroupsMax, groups.end());
    return groups;
  };
  line("round", event.report.round);
  line("ranks", event.report.hung.ranks);
  line("sentence", sentence(event.report.hung));
  line("culprits", first(event.report.culprits));
  line("others", first(event.report.others));
}

JobEvent without_what_no_line_shows(JobEvent event) {
  // Keeps a little more than a line shows, so that json_text() still ends the line with "…".
  const auto shorten = [](std::string& text) {
    constexpr std::size_t kKept = kJsonTextBytesMax + 4;
    if (text.size() > kKept) text = text.substr(0, kKept);
  };
  const auto shorten_failure = [&](std::optional<rdzv::WorkerFailure>& failure) {
    if (!failure) return;
    shorten(failure->message);
    failure->error_file = {};
    failure->log_dir = {};
    failure->stderr_tail = {};
  };
  if (auto* exited = std::get_if<WorkerExited>(&event)) {
    shorten(exited->message);
  } else if (auto* restarted = std::get_if<Restarted>(&event)) {
    shorten_failure(restarted->failure);
  } else if (auto* finished = std::get_if<JobFinished>(&event)) {
    shorten_failure(finished->outcome.cause);
    finished->outcome.consequences = {};
    shorten(finished->outcome.sentence);
  }
  return event;
}

std::string event_line(const EventHead& head, const JobEvent& event) {
  JsonWriter line;
  line("schema", kEventSchema);
  line("event", kEventNames[event.index()]);
  line("time", utc(head.time));
  line("monotonic_us", head.monotonic);
  line("job", head.job);
  line("host", head.host);
  std::visit([&line](const auto& each) { fields(line, each); }, event);
  return boost::json::serialize(line.object) + "\n";
}

}  // namespace ddprun::agent
