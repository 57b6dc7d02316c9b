#include "agent/events/core_record.h"

#include <boost/mp11/algorithm.hpp>
#include <type_traits>
#include <utility>

#include "agent/status/calls_json.h"
#include "agent/text/json_fields.h"
#include "rendezvous/common/base64.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 8> kNames<EndStep>{
    "logs", "followers", "leader", "progress", "output", "report", "events", "console"};

// In the order of NodeEvent, after the messages of the leader; in the order of LinkEvent.
constexpr std::array<std::string_view, 23> kOwnEvents{
    "store",          "worker_ended",    "stop_signal",   "preempt_signal",  "timer",
    "stacks_taken",   "round_closed",    "leader_lost",   "leader_replaced", "leader_found",
    "cannot_run",     "step_taken",      "can_recover",   "regrouped",       "worker_hung",
    "cannot_regroup", "regroup_is_late", "workers_seen",  "worker_started",  "start_is_late",
    "workers_held",   "worker_told",     "workers_parked"};
constexpr std::array<std::string_view, 4> kLinkEvents{"disconnected", "resumed", "silent",
                                                      "turned_away"};

// ---- messages, and the names of events

static std::string frame_of(const rdzv::ToLeader& message) {
  return encode(rdzv::wire::AgentFrame(rdzv::wire::Message<rdzv::ToLeader>{0, 0, message}));
}

static std::string frame_of(const rdzv::ToAgent& message) {
  return encode(rdzv::wire::LeaderFrame(rdzv::wire::Message<rdzv::ToAgent>{0, 0, message}));
}

static void put_message(JsonWriter& json, std::string_view name, const auto& message) {
  const std::string base64 = to_base64(frame_of(message));
  json(name, Whole{base64});
}

template <typename Body>
static Body message_in(const JsonReader& json, std::string_view name) {
  constexpr std::size_t kLengthBytes = 4;  // length prefix of a frame
  const auto bytes = from_base64(json.get<std::string>(name));
  if (bytes && bytes->size() >= kLengthBytes) {
    auto frame = [body = bytes->substr(kLengthBytes)] {
      if constexpr (std::is_same_v<Body, rdzv::ToLeader>) {
        return rdzv::wire::decode_agent_frame(body);
      } else {
        return rdzv::wire::decode_leader_frame(body);
      }
    }();
    auto* message = frame ? std::get_if<rdzv::wire::Message<Body>>(&*frame) : nullptr;
    if (message != nullptr) return std::move(message->body);
  }
  throw std::invalid_argument("a message that is none");
}

// The alternative that the field "event" names; `names` are those of the last alternatives.
template <std::size_t kCount>
static void read_event(const JsonReader& json, const std::array<std::string_view, kCount>& names,
                       auto& event) {
  constexpr std::size_t kFirst = std::variant_size_v<std::decay_t<decltype(event)>> - kCount;
  const auto name = std::ranges::find(names, json.get<std::string>("event"));
  if (name == names.end()) throw std::out_of_range("an unknown name");
  boost::mp11::mp_with_index<kCount>(
      static_cast<std::size_t>(name - names.begin()),
      [&](auto place) { fields(json, event.template emplace<kFirst + place>()); });
}

// ---- inputs of an agent's core

static_assert(std::variant_size_v<NodeEvent> ==
              std::variant_size_v<rdzv::ToAgent> + kOwnEvents.size());

static void fields(auto& json, Is<StoreResult> auto& result) {
  json("round", result.round);
  json("port", result.port);
  json("error", result.error);
}

static void fields(JsonWriter& json, const WorkerEnded& ended) {
  json("round", ended.round);
  json("local_rank", ended.local_rank);
  json("has_left", ended.has_left);
  if (!ended.failure) return;
  put_message(json, "failure", rdzv::ToLeader(rdzv::WorkerFailed{ended.round, *ended.failure}));
  if (!ended.replaceable) return;
  json("committed", ended.replaceable->committed);
  json("generation", ended.replaceable->generation);
  json("has_standby", ended.replaceable->has_standby);
}

static void fields(const JsonReader& json, WorkerEnded& ended) {
  json("round", ended.round);
  json("local_rank", ended.local_rank);
  json.may_lack("has_left", ended.has_left);
  if (!json.object.contains("failure")) return;
  ended.failure = std::get<rdzv::WorkerFailed>(message_in<rdzv::ToLeader>(json, "failure")).failure;
  if (!json.object.contains("committed")) return;
  ended.replaceable.emplace();
  json("committed", ended.replaceable->committed);
  json("generation", ended.replaceable->generation);
  json("has_standby", ended.replaceable->has_standby);
}

// Events that say no more than which worker it is.
template <typename T>
concept IsOfAWorker =
    Is<T, WorkerHung> || Is<T, WorkerCannotRegroup> || Is<T, WorkerStarted> || Is<T, WorkerTold>;
static void fields(auto& json, IsOfAWorker auto& event) {
  json("round", event.round);
  json("local_rank", event.local_rank);
}

static void fields(auto& json, Is<StopSignal> auto& stop) { json("signal", stop.signal); }
static void fields(auto& json, Is<PreemptSignal> auto& notice) { json("signal", notice.signal); }

// An earlier version said for which round the timer was: it is none that this one has armed.
static void fields(auto& json, Is<TimerExpired> auto& end) { json.may_lack("timer", end.timer); }
static void fields(auto& json, Is<StacksTaken> auto& taken) { json("round", taken.round); }
static void fields(auto& json, Is<RoundClosed> auto& closed) { json("round", closed.round); }

static void fields(auto& json, Is<LeaderLost> auto& lost) {
  json("sentence", lost.sentence);
  json("was_reached", lost.was_reached);
}

static void fields(auto&, Is<LeaderReplaced> auto&) {}
static void fields(auto& json, Is<LeaderFound> auto& found) { json("is_hosted", found.is_hosted); }

static void fields(auto& json, Is<CannotRun> auto& cannot) {
  json("exit_code", cannot.exit_code);
  json("sentence", cannot.sentence);
}

static void fields(auto& json, Is<StepTaken> auto& taken) { json("step", taken.step); }

static void fields(auto& json, Is<WorkersCanRecover> auto& can) { json("round", can.round); }

static void fields(auto& json, Is<WorkerRegrouped> auto& regrouped) {
  json("round", regrouped.round);
  json("local_rank", regrouped.local_rank);
  json("generation", regrouped.generation);
}

static void fields(auto& json, Is<RegroupIsLate> auto& late) {
  json("round", late.round);
  json("generation", late.generation);
}

static void fields(auto& json, Is<StartIsLate> auto& late) { json("round", late.round); }

static void fields(auto& json, Is<WorkersHeld> auto& held) {
  json("round", held.round);
  json("passed", held.passed);
  json.may_lack("step_ms", held.step);
  json.may_lack("until", held.until);
}
static void fields(auto& json, Is<WorkersParked> auto& parked) { json("round", parked.round); }

static void fields(auto& json, Is<WorkerSeen> auto& worker) {
  json("handles_stop", worker.handles_stop);
  json("has_gpu", worker.has_gpu);
  json("has_record", worker.has_record);
  json("in_call_ms", worker.in_call);
  json.may_lack("leaves", worker.leaves);
}

static void fields(auto& json, Is<WorkersSeen> auto& seen) {
  json("round", seen.round);
  json("workers", seen.workers);
}

static void fields(JsonWriter& json, const NodeInput& input) {
  std::visit(
      [&]<typename Event>(const Event& event) {
        if constexpr (std::is_constructible_v<rdzv::ToAgent, Event>) {
          put_message(json, "message", rdzv::ToAgent(event));
        } else {
          json("event", kOwnEvents[input.event.index() - std::variant_size_v<rdzv::ToAgent>]);
          fields(json, event);
        }
      },
      input.event);
}

static void fields(const JsonReader& json, NodeInput& input) {
  if (!json.object.contains("message")) return read_event(json, kOwnEvents, input.event);
  std::visit([&input](auto message) { input.event = std::move(message); },
             message_in<rdzv::ToAgent>(json, "message"));
}

// ---- inputs of a leader's core

static void fields(auto&, Is<rdzv::NodeDisconnected> auto&) {}
static void fields(auto&, Is<rdzv::NodeResumed> auto&) {}
static void fields(auto&, Is<rdzv::NodeSilent> auto&) {}
static void fields(auto& json, Is<rdzv::NodeTurnedAway> auto& node) {
  json("host", node.host);
  json("address", node.address);
  json("why", node.why);
  json.may_lack("node_rank", node.node_rank);
}

static void fields(JsonWriter& json, const rdzv::RoundInput& input) {
  json("at_us", input.at);
  json("node", input.node);
  if (const auto* message = std::get_if<rdzv::ToLeader>(&input.what)) {
    put_message(json, "message", *message);
  } else if (const auto* event = std::get_if<rdzv::LinkEvent>(&input.what)) {
    json("event", kLinkEvents[event->index()]);
    std::visit([&json](const auto& each) { fields(json, each); }, *event);
  }
}

static void fields(const JsonReader& json, rdzv::RoundInput& input) {
  json("at_us", input.at);
  json("node", input.node);
  if (json.object.contains("message")) {
    input.what = message_in<rdzv::ToLeader>(json, "message");
  } else if (json.object.contains("event")) {
    read_event(json, kLinkEvents, input.what.emplace<rdzv::LinkEvent>());
  }
}

// ---- how a core began. What an earlier version did not record stays as it is by default.

static void fields(auto& json, Is<NodeConfig> auto& config) {
  json.may_lack("local_world_size", config.local_world_size);
  json.may_lack("shutdown_timeout_ms", config.shutdown_timeout);
  json.may_lack("kill_timeout_ms", config.kill_timeout);
  json.may_lack("hosts_leader", config.hosts_leader);
  json.may_lack("failure_shutdown_timeout_ms", config.failure_shutdown_timeout);
  json.may_lack("leader_leave_timeout_ms", config.leader_leave_timeout);
  json.may_lack("kills_orphans", config.kills_orphans);
}

static void fields(auto& json, Is<rdzv::RoundConfig> auto& config) {
  json.may_lack("run_id", config.run_id);
  json.may_lack("program", config.program);
  json.may_lack("user", config.user);
  json.may_lack("min_nodes", config.min_nodes);
  json.may_lack("max_nodes", config.max_nodes);
  json.may_lack("max_restarts", config.restarts.max_restarts);
  json.may_lack("restart_window_ms", config.restarts.window);
  json.may_lack("no_progress_restarts", config.restarts.no_progress_restarts);
  json.may_lack("min_uptime_ms", config.restarts.min_uptime);
  json.may_lack("final_exit_codes", config.restarts.final_exit_codes);
  json.may_lack("pause_after_failure_ms", config.restarts.pause_after_failure.first);
  json.may_lack("pause_after_failure_max_ms", config.restarts.pause_after_failure.max);
  json.may_lack("quick_ms", config.restarts.quick);
  json.may_lack("pause_after_quick_loss_ms", config.restarts.pause_after_quick_loss.first);
  json.may_lack("pause_after_quick_loss_max_ms", config.restarts.pause_after_quick_loss.max);
  json.may_lack("has_exact_ranks", config.has_exact_ranks);
  json.may_lack("join_timeout_ms", config.join_timeout);
  json.may_lack("last_call_timeout_ms", config.last_call_timeout);
  json.may_lack("reconnect_grace_ms", config.reconnect_grace);
  json.may_lack("silence_limit_ms", config.silence_limit);
  json.may_lack("answer_timeout_ms", config.answer_timeout);
  json.may_lack("stop_margin_ms", config.stop_margin);
  json.may_lack("replace_timeout_ms", config.replace_timeout);
  json("own_node", config.own_node);
}

static void fields(auto& json, Is<rdzv::Resumption> auto& resumption) {
  json("next", resumption.next);
  json("restarts", resumption.history.restarts);
  json("quick_failures", resumption.history.quick_failures);
  json("quick_losses", resumption.history.quick_losses);
  json.may_lack("without_progress", resumption.history.without_progress);
  json.may_lack("failed_at_step", resumption.history.step);
  json.may_lack("step_kind", resumption.history.step_kind);
  json("goes_on", resumption.goes_on);
  json("nodes_expected", resumption.nodes_expected);
  json("uptime_us", resumption.uptime);
  json("now_us", resumption.now);
}

static void fields(auto& json, Is<NodeBegan> auto& began) { json("config", began.config); }

static void fields(auto& json, Is<RoundBegan> auto& began) {
  json("config", began.config);
  json("resumption", began.resumption);
}

static void fields(auto& json, Is<rdzv::HangRules> auto& rules) {
  json("patience_us", rules.patience);
  json("gap_us", rules.gap);
  json("timeout_us", rules.timeout);
  json("needs_step", rules.needs_step);
}

static void fields(auto& json, Is<rdzv::RankCalls> auto& rank) {
  json("rank", rank.rank);
  json("held", rank.state);
  json("held_us", rank.held_for);
  json("since_step_us", rank.since_step);
  json("calls", rank.groups);
  json.may_lack("keeps_record", rank.keeps_record);
  json.may_lack("all_wait", rank.all_wait);
}

static void fields(auto& json, Is<CallsSeen> auto& seen) {
  json("round", seen.round);
  json("is_end", seen.is_end);
  json("world_size", seen.world_size);
  json("rules", seen.rules);
  json("ranks", seen.ranks);
}

// ---- inputs of the core that follows verdicts: what it decides by

constexpr std::array<std::string_view, std::variant_size_v<hang_response::Event>> kResponseEvents{
    "found",     "waits",        "stacks_taken",   "reported",
    "confirmed", "end_answered", "response_timer", "round_over"};

static void fields(auto& json, Is<hang_response::Found> auto& found) {
  json("case", found.id);
  json("why", found.hung.why);
  json("basis", found.hung.basis);
  json("ranks", found.hung.ranks);
}
static void fields(auto& json, Is<hang_response::Waits> auto& waits) {
  json("case", waits.id);
  json("missing", waits.wait.missing);
}
static void fields(auto& json, Is<hang_response::StacksTaken> auto& taken) {
  json("case", taken.id);
}
static void fields(auto& json, Is<hang_response::Reported> auto& reported) {
  json("case", reported.id);
  json("culprits", reported.culprits);
}
static void fields(auto& json, Is<hang_response::Confirmed> auto& confirmed) {
  json("case", confirmed.id);
  json("is_so", confirmed.is_so);
}
static void fields(auto& json, Is<hang_response::EndAnswered::Refusal> auto& refusal) {
  json("ranks", refusal.ranks);
  json("why", refusal.why);
}
static void fields(auto& json, Is<hang_response::EndAnswered> auto& answered) {
  json("case", answered.id);
  json("known", answered.known);
  json("refused", answered.refused);
}
static void fields(auto& json, Is<hang_response::TimerExpired> auto& expired) {
  json("case", expired.id);
}
static void fields(auto&, Is<hang_response::RoundOver> auto&) {}

static void fields(auto& json, Is<ResponseBegan> auto& began) { json("config", began.ends); }
static void fields(JsonWriter& json, const ResponseInput& input) {
  json("event", kResponseEvents[input.event.index()]);
  std::visit([&json](const auto& event) { fields(json, event); }, input.event);
}
static void fields(const JsonReader& json, ResponseInput& input) {
  read_event(json, kResponseEvents, input.event);
}

static void fields(auto& json, Is<InputsLost> auto& lost) { json("lost", lost.count); }

// ---- lines

static void fields(JsonWriter& line, const RecordedStep& step) {
  constexpr std::string_view kCores[] = {"group", "round", "group",    "round",
                                         "none",  "hang",  "response", "response"};
  static_assert(std::size(kCores) == std::variant_size_v<Recorded>, "in the order of the variant");
  line("unix_us", step.unix_us);
  line("core", kCores[step.what.index()]);
  std::visit([&line](const auto& what) { fields(line, what); }, step.what);
  line("decisions", step.decisions);
}

static void fields(const JsonReader& line, RecordedStep& step) {
  line("unix_us", step.unix_us);
  const auto core = line.get<std::string>("core");
  const bool begins = line.object.contains("config");
  if (core == "group") {
    begins ? fields(line, step.what.emplace<NodeBegan>())
           : fields(line, step.what.emplace<NodeInput>());
  } else if (core == "round") {
    begins ? fields(line, step.what.emplace<RoundBegan>())
           : fields(line, step.what.emplace<rdzv::RoundInput>());
  } else if (core == "response") {
    begins ? fields(line, step.what.emplace<ResponseBegan>())
           : fields(line, step.what.emplace<ResponseInput>());
  } else if (core == "hang") {
    fields(line, step.what.emplace<CallsSeen>());
  } else if (core == "none") {
    fields(line, step.what.emplace<InputsLost>());
  } else {
    throw std::out_of_range("an unknown name");
  }
  line("decisions", step.decisions);
}

std::string record_line(const RecordedStep& step) {
  return boost::json::serialize(JsonWriter::of(step)) + "\n";
}

Result<RecordedStep> recorded_step_from(std::string_view text) {
  return parse_json<RecordedStep>(text, "the line");
}

}  // namespace ddprun::agent
