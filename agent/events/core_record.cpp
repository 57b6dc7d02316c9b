#include "agent/events/core_record.h"

#include <array>
#include <type_traits>
#include <utility>

#include "agent/status/status_json.h"
#include "rendezvous/common/base64.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::agent {
namespace {

using namespace status_json;
using std::chrono::milliseconds;

constexpr std::size_t kLengthBytes = 4;  // length prefix of a frame

// ---- messages

// Unlike text(), does not shorten.
json::value plain(const std::string& ascii) { return json::value(json::string(ascii)); }

json::value packed(const rdzv::ToLeader& message) {
  return plain(to_base64(rdzv::wire::encode(
      rdzv::wire::AgentFrame(rdzv::wire::Message<rdzv::ToLeader>{0, 0, message}))));
}

json::value packed(const rdzv::ToAgent& message) {
  return plain(to_base64(rdzv::wire::encode(
      rdzv::wire::LeaderFrame(rdzv::wire::Message<rdzv::ToAgent>{0, 0, message}))));
}

std::string frame_in(const Reader& from, std::string_view name) {
  auto frame = from_base64(from.text(name));
  if (!frame || frame->size() < kLengthBytes) throw std::invalid_argument("a message that is none");
  return frame->substr(kLengthBytes);
}

rdzv::ToLeader to_leader_in(const Reader& from, std::string_view name) {
  auto frame = rdzv::wire::decode_agent_frame(frame_in(from, name));
  auto* message = frame ? std::get_if<rdzv::wire::Message<rdzv::ToLeader>>(&*frame) : nullptr;
  if (message == nullptr) throw std::invalid_argument("a message that is none");
  return std::move(message->body);
}

rdzv::ToAgent to_agent_in(const Reader& from, std::string_view name) {
  auto frame = rdzv::wire::decode_leader_frame(frame_in(from, name));
  auto* message = frame ? std::get_if<rdzv::wire::Message<rdzv::ToAgent>>(&*frame) : nullptr;
  if (message == nullptr) throw std::invalid_argument("a message that is none");
  return std::move(message->body);
}

// ---- inputs of an agent's core

constexpr std::array<std::string_view, 12> kOwnEvents{
    "store",           "worker_ended", "stop_signal",  "preempt_signal",
    "timer",           "stacks_taken", "round_closed", "leader_lost",
    "leader_replaced", "leader_found", "cannot_run",   "step_taken"};
enum class OwnEvent {
  kStore,
  kWorkerEnded,
  kStop,
  kPreempt,
  kTimer,
  kStacksTaken,
  kClosed,
  kLeaderLost,
  kLeaderReplaced,
  kLeaderFound,
  kCannotRun,
  kStepTaken
};

constexpr std::array<std::string_view, 8> kEndSteps{"logs",   "followers", "leader", "progress",
                                                    "output", "report",    "events", "console"};

json::value name_value(OwnEvent event) { return text(kOwnEvents[static_cast<std::size_t>(event)]); }

struct EventWriter {
  json::object& line;

  void operator()(const StoreResult& result) const {
    line["event"] = name_value(OwnEvent::kStore);
    line["round"] = number(result.round);
    line["port"] = result.port;
    line["error"] = text(result.error);
  }
  void operator()(const WorkerEnded& ended) const {
    line["event"] = name_value(OwnEvent::kWorkerEnded);
    line["round"] = number(ended.round);
    line["local_rank"] = ended.local_rank;
    if (ended.failure) {
      line["failure"] = packed(rdzv::ToLeader(rdzv::WorkerFailed{ended.round, *ended.failure}));
    }
  }
  void operator()(const StopSignal& stop) const {
    line["event"] = name_value(OwnEvent::kStop);
    line["signal"] = stop.signal;
  }
  void operator()(const PreemptSignal& preempt) const {
    line["event"] = name_value(OwnEvent::kPreempt);
    line["signal"] = preempt.signal;
  }
  void operator()(const TimerExpired& expired) const {
    line["event"] = name_value(OwnEvent::kTimer);
    line["timer"] = static_cast<std::uint32_t>(expired.timer);
  }
  void operator()(const StacksTaken& taken) const {
    line["event"] = name_value(OwnEvent::kStacksTaken);
    line["round"] = number(taken.round);
  }
  void operator()(const RoundClosed& closed) const {
    line["event"] = name_value(OwnEvent::kClosed);
    line["round"] = number(closed.round);
  }
  void operator()(const LeaderLost& lost) const {
    line["event"] = name_value(OwnEvent::kLeaderLost);
    line["sentence"] = text(lost.sentence);
    line["was_reached"] = lost.was_reached;
  }
  void operator()(const LeaderReplaced&) const {
    line["event"] = name_value(OwnEvent::kLeaderReplaced);
  }
  void operator()(const LeaderFound& found) const {
    line["event"] = name_value(OwnEvent::kLeaderFound);
    line["is_hosted"] = found.is_hosted;
  }
  void operator()(const CannotRun& cannot) const {
    line["event"] = name_value(OwnEvent::kCannotRun);
    line["exit_code"] = cannot.exit_code;
    line["sentence"] = text(cannot.sentence);
  }
  void operator()(const StepTaken& taken) const {
    line["event"] = name_value(OwnEvent::kStepTaken);
    line["step"] = text(kEndSteps[static_cast<std::size_t>(taken.step)]);
  }
  template <typename Message>
  void operator()(const Message& message) const {  // of the leader
    line["message"] = packed(rdzv::ToAgent(message));
  }
};

NodeEvent own_event_from(const Reader& from) {
  const auto round = [&] { return Round{from.number<std::uint32_t>("round")}; };
  switch (from.one_of<OwnEvent>(kOwnEvents, "event")) {
    case OwnEvent::kStore:
      return StoreResult{round(), from.number<std::uint16_t>("port"), from.text("error")};
    case OwnEvent::kWorkerEnded: {
      WorkerEnded ended{round(), from.number<int>("local_rank"), {}};
      if (from.object.contains("failure")) {
        ended.failure = std::get<rdzv::WorkerFailed>(to_leader_in(from, "failure")).failure;
      }
      return ended;
    }
    case OwnEvent::kStop:
      return StopSignal{from.number<int>("signal")};
    case OwnEvent::kPreempt:
      return PreemptSignal{from.number<int>("signal")};
    case OwnEvent::kTimer:
      // Of an earlier version, which said for which round it was: it is none that this one has armed.
      if (!from.object.contains("timer")) return TimerExpired{};
      return TimerExpired{TimerId{from.number<std::uint32_t>("timer")}};
    case OwnEvent::kStacksTaken:
      return StacksTaken{round()};
    case OwnEvent::kClosed:
      return RoundClosed{round()};
    case OwnEvent::kLeaderLost:
      return LeaderLost{from.text("sentence"), from.truth("was_reached")};
    case OwnEvent::kLeaderFound:
      return LeaderFound{from.truth("is_hosted")};
    case OwnEvent::kCannotRun:
      return CannotRun{from.number<int>("exit_code"), from.text("sentence")};
    case OwnEvent::kStepTaken:
      return StepTaken{from.one_of<EndStep>(kEndSteps, "step")};
    case OwnEvent::kLeaderReplaced:
      break;
  }
  return LeaderReplaced{};
}

NodeInput group_input_from(const Reader& from) {
  if (!from.object.contains("message")) return {own_event_from(from)};
  return std::visit([](const auto& each) { return NodeInput{NodeEvent(each)}; },
                    to_agent_in(from, "message"));
}

// ---- inputs of a leader's core

constexpr std::array<std::string_view, 3> kLinkEvents{"disconnected", "resumed", "silent"};

void put(json::object& line, const rdzv::RoundInput& input) {
  line["at_us"] = input.at.time_since_epoch().count();
  line["node"] = number(input.node);
  if (const auto* message = std::get_if<rdzv::ToLeader>(&input.what)) {
    line["message"] = packed(*message);
  } else if (const auto* event = std::get_if<rdzv::LinkEvent>(&input.what)) {
    line["event"] = text(kLinkEvents[event->index()]);
  }
}

rdzv::RoundInput round_input_from(const Reader& from) {
  rdzv::RoundInput input;
  input.at = CoreTime(from.us("at_us"));
  input.node = NodeId{from.number<std::uint32_t>("node")};
  if (from.object.contains("message")) {
    input.what = to_leader_in(from, "message");
  } else if (from.object.contains("event")) {
    enum class Link { kDisconnected, kResumed, kSilent };
    const auto link = from.one_of<Link>(kLinkEvents, "event");
    input.what = link == Link::kDisconnected ? rdzv::LinkEvent(rdzv::NodeDisconnected{})
                 : link == Link::kResumed    ? rdzv::LinkEvent(rdzv::NodeResumed{})
                                             : rdzv::LinkEvent(rdzv::NodeSilent{});
  }
  return input;
}

// ---- the configuration: each field is listed once, for writing and reading

struct ConfigWriter {
  json::object& object;

  void operator()(const char* name, const std::string& value) const { object[name] = text(value); }
  void operator()(const char* name, int value) const { object[name] = value; }
  void operator()(const char* name, bool value) const { object[name] = value; }
  void operator()(const char* name, milliseconds value) const { object[name] = value.count(); }
  void operator()(const char* name, const std::vector<int>& values) const {
    object[name] = json::array(values.begin(), values.end());
  }
};

// What an earlier version did not record stays as it is by default.
struct ConfigReader {
  Reader from;

  void operator()(const char* name, auto& value) const {
    if (from.object.contains(name)) read(name, value);
  }

 private:
  void read(const char* name, std::string& value) const { value = from.text(name); }
  void read(const char* name, int& value) const { value = from.number<int>(name); }
  void read(const char* name, bool& value) const { value = from.truth(name); }
  void read(const char* name, milliseconds& value) const {
    value = std::chrono::duration_cast<milliseconds>(from.us(name) * 1000);
  }
  void read(const char* name, std::vector<int>& values) const {
    for (const json::value& each : from.list(name)) values.push_back(each.to_number<int>());
  }
};

void fields(auto&& archive, auto& config) requires
    std::is_same_v<std::remove_const_t<std::remove_reference_t<decltype(config)>>, NodeConfig> {
  archive("local_world_size", config.local_world_size);
  archive("shutdown_timeout_ms", config.shutdown_timeout);
  archive("kill_timeout_ms", config.kill_timeout);
  archive("hosts_leader", config.hosts_leader);
  archive("failure_shutdown_timeout_ms", config.failure_shutdown_timeout);
  archive("leader_leave_timeout_ms", config.leader_leave_timeout);
}

void fields(auto&& archive, auto& config) requires std::is_same_v<
    std::remove_const_t<std::remove_reference_t<decltype(config)>>, rdzv::RoundConfig> {
  archive("run_id", config.run_id);
  archive("program", config.program);
  archive("user", config.user);
  archive("min_nodes", config.min_nodes);
  archive("max_nodes", config.max_nodes);
  archive("max_restarts", config.restarts.max_restarts);
  archive("min_uptime_ms", config.restarts.min_uptime);
  archive("final_exit_codes", config.restarts.final_exit_codes);
  archive("pause_after_failure_ms", config.restarts.pause_after_failure.first);
  archive("pause_after_failure_max_ms", config.restarts.pause_after_failure.max);
  archive("quick_ms", config.restarts.quick);
  archive("pause_after_quick_loss_ms", config.restarts.pause_after_quick_loss.first);
  archive("pause_after_quick_loss_max_ms", config.restarts.pause_after_quick_loss.max);
  archive("has_exact_ranks", config.has_exact_ranks);
  archive("join_timeout_ms", config.join_timeout);
  archive("last_call_timeout_ms", config.last_call_timeout);
  archive("reconnect_grace_ms", config.reconnect_grace);
  archive("answer_timeout_ms", config.answer_timeout);
  archive("stop_margin_ms", config.stop_margin);
}

json::value resumption_value(const std::optional<rdzv::Resumption>& resumption) {
  if (!resumption) return nullptr;
  return json::object{{"next", number(resumption->next)},
                      {"restarts", resumption->history.restarts},
                      {"quick_failures", resumption->history.quick_failures},
                      {"quick_losses", resumption->history.quick_losses},
                      {"goes_on", resumption->goes_on},
                      {"nodes_expected", resumption->nodes_expected},
                      {"uptime_us", resumption->uptime ? json::value(resumption->uptime->count())
                                                       : json::value(nullptr)},
                      {"now_us", resumption->now.time_since_epoch().count()}};
}

std::optional<rdzv::Resumption> resumption_from(const json::value& value) {
  if (value.is_null()) return std::nullopt;
  const Reader from(value);
  rdzv::Resumption resumption;
  resumption.next = Round{from.number<std::uint32_t>("next")};
  resumption.history = {from.number<int>("restarts"), from.number<int>("quick_failures"),
                        from.number<int>("quick_losses")};
  resumption.goes_on = from.truth("goes_on");
  resumption.nodes_expected = from.number<int>("nodes_expected");
  if (from.has("uptime_us")) resumption.uptime = from.us("uptime_us");
  resumption.now = CoreTime(from.us("now_us"));
  return resumption;
}

// ---- lines

struct LineWriter {
  json::object& line;

  void operator()(const NodeBegan& began) const {
    line["core"] = "group";
    json::object config;
    fields(ConfigWriter{config}, began.config);
    line["config"] = std::move(config);
  }
  void operator()(const RoundBegan& began) const {
    line["core"] = "round";
    json::object config;
    fields(ConfigWriter{config}, began.config);
    const auto& own = began.config.own_node;
    config["own_node"] = own ? json::value(number(*own)) : json::value(nullptr);
    line["config"] = std::move(config);
    line["resumption"] = resumption_value(began.resumption);
  }
  void operator()(const NodeInput& input) const {
    line["core"] = "group";
    std::visit(EventWriter{line}, input.event);
  }
  void operator()(const rdzv::RoundInput& input) const {
    line["core"] = "round";
    put(line, input);
  }
  void operator()(const InputsLost& lost) const {
    line["core"] = "none";
    line["lost"] = lost.count;
  }
};

Recorded recorded_from(const Reader& from) {
  enum class Core { kGroup, kRound, kNone };
  constexpr std::array<std::string_view, 3> kCores{"group", "round", "none"};
  const Core core = from.one_of<Core>(kCores, "core");
  if (core == Core::kNone) return InputsLost{from.number<std::uint64_t>("lost")};
  const bool begins = from.object.contains("config");
  if (core == Core::kGroup) {
    if (!begins) return group_input_from(from);
    NodeBegan began;
    fields(ConfigReader{Reader(from.at("config"))}, began.config);
    return began;
  }
  if (!begins) return round_input_from(from);
  RoundBegan began;
  const Reader config(from.at("config"));
  fields(ConfigReader{config}, began.config);
  began.config.own_node.reset();
  if (config.has("own_node")) {
    began.config.own_node = NodeId{config.number<std::uint32_t>("own_node")};
  }
  began.resumption = resumption_from(from.at("resumption"));
  return began;
}

}  // namespace

std::string record_line(const RecordedStep& step) {
  json::object line{{"unix_us", step.unix_us}};
  std::visit(LineWriter{line}, step.what);
  line["decisions"] = step.decisions;
  return json::serialize(line) + "\n";
}

Result<RecordedStep> recorded_step_from(std::string_view text) {
  return parse_status(text, "the line", [](const json::value& value) {
    const Reader from(value);
    return RecordedStep{from.number<std::int64_t>("unix_us"), recorded_from(from),
                        from.number<std::size_t>("decisions")};
  });
}

}  // namespace ddprun::agent
