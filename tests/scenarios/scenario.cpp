#include "tests/scenarios/scenario.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "agent/events/core_record.h"
#include "launcher/ctl/core_text.h"
#include "rendezvous/common/text/ranks.h"
#include "tests/scenarios/event_line.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using agent::in_words;
using std::chrono::milliseconds;

template <typename Event>
using Names = std::map<std::string_view, std::function<Event(EventLine&)>>;

template <typename Event>
Event event_in(const Names<Event>& names, EventLine& line) {
  const auto known = names.find(line.name());
  if (known == names.end()) throw std::invalid_argument("'" + line.name() + "' is no event");
  Event event = known->second(line);
  line.end();
  return event;
}

// ---- parts of events

const ExitStatus kKilled = ExitStatus::killed(SIGKILL);

rdzv::WorkerFailure failure_in(EventLine& line, int rank,
                               ExitStatus otherwise = ExitStatus::exited(1)) {
  rdzv::WorkerFailure failure;
  failure.rank = rank;
  failure.local_rank = rank;
  failure.pid = 1000 + rank;
  const auto signal = line.field("signal");
  const auto code = line.number("exit");
  failure.status = signal ? ExitStatus::killed(signal_number(*signal))
                   : code ? ExitStatus::exited(*code)
                          : otherwise;
  failure.was_told_to_stop = line.has("told");
  failure.is_worth_a_retry = !line.has("final");
  failure.asked_by = line.text();
  if (const auto step = line.number("step")) {
    failure.progress.emplace();
    failure.progress->step = *step;
    if (line.has("counted")) failure.progress->step_kind = StepKind::kCounted;
  }
  return failure;
}

// "2:3", "2"
std::pair<int, int> nodes_in(EventLine& line, std::pair<int, int> otherwise) {
  const auto nodes = line.field("nodes");
  if (!nodes) return otherwise;
  const std::size_t colon = nodes->find(':');
  const int min = EventLine::number_in(std::string_view(*nodes).substr(0, colon));
  return {min, colon == std::string::npos ? min : EventLine::number_in(nodes->substr(colon + 1))};
}

rdzv::JobOutcome outcome_in(EventLine& line) {
  using Kind = rdzv::JobOutcome::Kind;
  rdzv::JobOutcome outcome;
  if (line.has("failed")) outcome.kind = Kind::kFailed;
  if (line.has("stopped")) outcome.kind = Kind::kStopped;
  if (line.has("cannot_run")) outcome.kind = Kind::kCannotRun;
  outcome.exit_code = line.number("exit", 0);
  return outcome;
}

rdzv::RoundStart round_start_in(EventLine& line) {
  rdzv::RoundStart start;
  start.round = line.round();
  start.world_size = line.number("world", 2);
  start.rank_offset = line.number("first_rank", 0);
  start.node_count = line.number("nodes", 1);
  start.restarts = line.number("restarts", 0);
  return start;
}

// "none", "saves", "gpu,unknown", "call=970ms": what a worker can still do after a failure.
agent::WorkerSeen worker_seen_in(const std::string& text) {
  agent::WorkerSeen worker;
  worker.handles_stop = text != "none";
  worker.has_gpu = text == "gpu";
  worker.has_record = text != "gpu" && text != "unknown";
  if (text.starts_with("call:")) worker.in_call = EventLine::time_in(text.substr(5));
  worker.leaves = text == "leaves";
  const bool is_known = worker.in_call || worker.leaves || text == "none" || text == "saves" ||
                        text == "gpu" || text == "unknown";
  return is_known ? worker : throw std::invalid_argument("'" + text + "' is no worker's state");
}

agent::WorkersSeen workers_seen_in(EventLine& line) {
  agent::WorkersSeen seen{line.round(), {}};
  std::istringstream parts(line.word());
  for (std::string part; std::getline(parts, part, ',');) {
    seen.workers.push_back(worker_seen_in(part));
  }
  return seen;
}

agent::WorkerEnded worker_ended_in(EventLine& line) {
  agent::WorkerEnded ended{line.round(), line.rank(), {}};
  ended.has_left = line.has("left");
  if (line.has("succeeds")) return ended;
  if (const auto committed = line.number("committed")) {
    ended.replaceable = agent::Replaceable{*committed, line.generation(), !line.has("no_standby")};
  }
  ended.failure =
      failure_in(line, ended.local_rank, ended.replaceable ? kKilled : ExitStatus::exited(1));
  return ended;
}

rdzv::ReplaceWorker replace_worker_in(EventLine& line) {
  rdzv::ReplaceWorker replace;
  replace.round = line.round();
  replace.generation = line.generation();
  replace.rank = line.number("rank", 0);
  replace.restarts = 1;
  replace.max_restarts = 3;
  replace.failure = failure_in(line, replace.rank, kKilled);
  return replace;
}

rdzv::WorkerReplaceable worker_replaceable_in(EventLine& line) {
  rdzv::WorkerReplaceable failed;
  failed.round = line.round();
  failed.committed = line.number("committed", 5);
  failed.generation = line.generation();
  failed.has_standby = !line.has("no_standby");
  failed.failure = failure_in(line, line.number("rank", 0), kKilled);
  return failed;
}

rdzv::RoundStopped round_stopped_in(EventLine& line) {
  rdzv::RoundStopped stopped{line.round(), {}, line.numbers("done")};
  for (const int rank : line.numbers("failed")) {
    stopped.failures.push_back(failure_in(line, rank, ExitStatus::killed(SIGTERM)));
  }
  return stopped;
}

rdzv::DrainAsked drain_asked_in(EventLine& line) {
  rdzv::DrainAsked asked;
  const std::string node = std::to_string(line.number("node", 0));
  asked.name = {"node" + node, "10.0.0." + node};
  using What = rdzv::DrainAsked::What;
  asked.what = line.has("back")  ? What::kUndrain
               : line.has("now") ? What::kDrainAtOnce
                                 : What::kDrain;
  asked.by = line.text();
  return asked;
}

agent::EndStep step_in(const std::string& name) {
  constexpr const char* kSteps[] = {"logs",   "followers", "leader", "progress",
                                    "output", "report",    "events", "console"};
  const auto* const step = std::ranges::find(kSteps, name);
  if (step == std::end(kSteps)) throw std::invalid_argument("'" + name + "' is no step");
  return static_cast<agent::EndStep>(step - kSteps);
}

// ---- the events, by name

using LeaderEvent = std::variant<rdzv::ToLeader, rdzv::LinkEvent>;
using E = EventLine;

rdzv::HoldSteps::Until until_in(E& e) {
  return static_cast<rdzv::HoldSteps::Until>(e.number("until", 0));
}

// clang-format off
const Names<agent::NodeEvent>& node_events() {
  using namespace agent;
  using Why = rdzv::RoundStop::Why;
  static const Names<NodeEvent> kEvents = {
      {"Refused", [](E& e) { return rdzv::Refused{{e.text()}}; }},
      {"OpenStore", [](E& e) { return rdzv::OpenStore{{e.round()}}; }},
      {"RoundStart", round_start_in},
      {"RoundStop",
       [](E& e) {
         rdzv::RoundStop stop{e.round(), e.has("failure") ? Why::kFailure : Why::kPlanned};
         if (const auto step = e.number("step", 0)) stop.after_step = step;
         return stop;
       }},
      {"DeclaredLost", [](E&) { return rdzv::DeclaredLost{}; }},
      {"JobEnd", [](E& e) { return rdzv::JobEnd{outcome_in(e)}; }},
      {"GroupBroken", [](E& e) { return rdzv::GroupBroken{e.round(), e.number("rank", 0)}; }},
      {"ReplaceWorker", replace_worker_in},
      {"HoldSteps",
       [](E& e) { return rdzv::HoldSteps{e.round(), until_in(e)}; }},
      {"LeaveAt", [](E& e) { return rdzv::LeaveAt{e.round(), e.number("boundary", 1)}; }},
      {"store", [](E& e) { return StoreResult{e.round(), e.port(0), e.text()}; }},
      {"worker_ended", worker_ended_in},
      {"worker_hung", [](E& e) { return WorkerHung{e.round(), e.rank()}; }},
      {"stop_signal", [](E& e) { return StopSignal{e.signal()}; }},
      {"preempt_signal", [](E& e) { return PreemptSignal{e.signal()}; }},
      {"preempt_notice", [](E&) { return PreemptSignal{}; }},
      {"timer", [](E& e) { return TimerExpired{static_cast<TimerId>(e.rank())}; }},
      {"stacks_taken", [](E& e) { return StacksTaken{e.round()}; }},
      {"round_closed", [](E& e) { return RoundClosed{e.round()}; }},
      {"leader_lost", [](E& e) { return LeaderLost{e.text(), !e.has("unreached")}; }},
      {"leader_replaced", [](E&) { return LeaderReplaced{}; }},
      {"leader_found", [](E& e) { return LeaderFound{e.has("here")}; }},
      {"cannot_run", [](E& e) { return CannotRun{e.number("exit", 2), e.text()}; }},
      {"step_taken", [](E& e) { return StepTaken{step_in(e.word())}; }},
      {"can_recover", [](E& e) { return WorkersCanRecover{e.round()}; }},
      {"regrouped", [](E& e) { return WorkerRegrouped{e.round(), e.rank(), e.generation()}; }},
      {"cannot_regroup", [](E& e) { return WorkerCannotRegroup{e.round(), e.rank()}; }},
      {"regroup_is_late", [](E& e) { return RegroupIsLate{e.round(), e.generation()}; }},
      {"workers_seen", workers_seen_in},
      {"worker_started", [](E& e) { return WorkerStarted{e.round(), e.rank()}; }},
      {"start_is_late", [](E& e) { return StartIsLate{e.round()}; }},
      {"workers_held",
       [](E& e) {
         WorkersHeld held{e.round(), e.number("passed", 0)};
         held.until = until_in(e);
         if (const auto step = e.number("step_ms", 0)) held.step = std::chrono::milliseconds(step);
         return held;
       }},
      {"workers_parked", [](E& e) { return WorkersParked{e.round()}; }},
      {"worker_told", [](E& e) { return WorkerTold{e.round(), e.rank()}; }}};
  return kEvents;
}

const Names<LeaderEvent>& leader_events() {
  using namespace rdzv;
  static const Names<LeaderEvent> kEvents = {
      {"StoreOpened", [](E& e) { return StoreOpened{e.round(), e.port(4000)}; }},
      {"StoreNotOpened", [](E& e) { return StoreNotOpened{e.round(), e.text()}; }},
      {"WorkerFailed", [](E& e) { return WorkerFailed{e.round(), failure_in(e, e.number("rank", 0))}; }},
      {"WorkerReplaceable", worker_replaceable_in},
      {"SomeWorkersDone", [](E& e) { return SomeWorkersDone{{e.round()}}; }},
      {"WorkersDone", [](E& e) { return WorkersDone{e.round(), e.has("left")}; }},
      {"RoundStopped", round_stopped_in},
      {"NodeLeaving", [](E& e) { return NodeLeaving{e.signal(), e.has("preempted")}; }},
      {"NodeStuck", [](E& e) { return NodeStuck{{e.text()}}; }},
      {"Goodbye", [](E&) { return Goodbye{}; }},
      {"RestartAsked", [](E& e) { return RestartAsked{e.round(), e.text()}; }},
      {"StopAsked", [](E& e) { return StopAsked{e.signal(), e.text()}; }},
      {"DrainAsked", drain_asked_in},
      {"NodeUnfit", [](E& e) { return NodeUnfit{{e.text()}}; }},
      {"NodeFit", [](E&) { return NodeFit{}; }},
      {"WorkersRecover", [](E& e) { return WorkersRecover{{e.round()}}; }},
      {"Regrouped", [](E& e) { return Regrouped{e.round(), e.generation()}; }},
      {"CannotRegroup", [](E& e) { return CannotRegroup{e.round(), e.generation()}; }},
      {"LeaveWanted", [](E& e) { return LeaveWanted{{e.round()}}; }},
      {"StepsHeld", [](E& e) { return StepsHeld{e.round(), e.number("passed", 0), until_in(e)}; }},
      {"StopWanted", [](E& e) { return StopWanted{{e.round()}}; }},
      {"disconnected", [](E&) { return LinkEvent(NodeDisconnected{}); }},
      {"resumed", [](E&) { return LinkEvent(NodeResumed{}); }},
      {"silent", [](E&) { return LinkEvent(NodeSilent{}); }},
      {"turned_away", [](E& e) { return LinkEvent(NodeTurnedAway{"", e.field("address").value_or(""), e.text()}); }}};
  return kEvents;
}
// clang-format on

rdzv::RoundConfig leader_config_in(EventLine& line) {
  rdzv::RoundConfig config;
  std::tie(config.min_nodes, config.max_nodes) = nodes_in(line, {1, 1});
  config.run_id = line.field("run_id").value_or("");
  config.restarts.max_restarts = line.number("restarts", 0);
  config.restarts.window = line.time("window", 0ms);
  config.restarts.no_progress_restarts = line.number("no_progress", 0);
  config.restarts.min_uptime = line.time("min_uptime", 0ms);
  config.restarts.final_exit_codes = line.numbers("final_exit_codes");
  const auto pause = line.time("pause", 0ms);
  config.restarts.pause_after_failure = {pause, line.time("pause_max", pause)};
  config.has_exact_ranks = line.has("exact_ranks");
  if (line.has("without_node")) config.own_node.reset();
  return config;
}

// ---- texts

constexpr std::string_view kNext = " / ";  // between events, and between nodes' decisions
constexpr std::string_view kDecides = " =>";

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : std::string(separator)) + part;
  return text;
}

// `first` and the words, in lines of at most 120 columns; all but the first are indented.
std::string wrapped(const std::string& first, const std::string& text) {
  constexpr std::size_t kWidth = 120;
  std::istringstream words(text);
  std::string lines;
  std::string line = first;
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > kWidth) lines += std::exchange(line, "   ") + "\n";
    line += " " + word;
  }
  return lines + line + "\n";
}

// "[running (round 0)] start …" if the state has changed, or why there is no decision.
std::string step_in_words(const std::string& before, const std::string& after,
                          const std::vector<std::string>& decisions, std::string_view why) {
  return (before == after ? "" : "[" + after + "] ") + (!decisions.empty() ? joined(decisions, "; ")
                                                        : why.empty()
                                                            ? "nothing"
                                                            : "nothing: " + std::string(why));
}

// The signals to one worker stand together, and workers that get the same ones.
std::vector<std::string> in_words(const std::vector<agent::NodeAction>& actions) {
  std::vector<std::string> parts;
  std::map<std::string, std::vector<int>> signalled;  // local ranks, by signals
  std::string signals;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const auto* const signal = std::get_if<agent::SignalWorker>(&actions[i]);
    if (signal == nullptr) {
      parts.push_back(in_words(actions[i]));
      continue;
    }
    signals += (signals.empty() ? "" : ", ") + signal_name(signal->signal);
    const auto* const next =
        i + 1 < actions.size() ? std::get_if<agent::SignalWorker>(&actions[i + 1]) : nullptr;
    if (next != nullptr && next->local_rank == signal->local_rank) continue;
    signalled[std::exchange(signals, {})].push_back(signal->local_rank);
    if (next != nullptr) continue;
    for (const auto& [which, ranks] : std::exchange(signalled, {})) {
      parts.push_back("send " + which + " to local " + ranks_in_words(ranks));
    }
  }
  return parts;
}

// Nodes that are told the same are named together, and those of a round that begins.
std::vector<std::string> in_words(const std::vector<rdzv::ToNode>& messages) {
  const auto without_rank = [](rdzv::ToAgent message) {
    if (auto* start = std::get_if<rdzv::RoundStart>(&message)) {
      start->node_rank = start->rank_offset = start->role_rank_offset = 0;
    }
    return message;
  };
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < messages.size();) {
    std::string nodes;
    std::size_t next = i;
    for (; next < messages.size() &&
           without_rank(messages[next].message) == without_rank(messages[i].message);
         ++next) {
      nodes += (nodes.empty() ? "" : ", ") + std::to_string(number(messages[next].to));
    }
    parts.push_back("tell " + nodes + " " + in_words(messages[i].message));
    i = next;
  }
  return parts;
}

// ---- what runs a scenario

class Scenario {
 public:
  // What is decided for the last of these events, for each node that it comes from.
  std::vector<std::string> on(std::string_view events) {
    decided_.clear();
    if (events.starts_with('{')) {
      recorded(events);
      return decided_;
    }
    for (std::size_t next = 0; next != std::string_view::npos;) {
      const std::size_t end = events.find(kNext, next);
      decided_.clear();
      on(EventLine(events.substr(next, end == std::string_view::npos ? end : end - next)));
      next = end == std::string_view::npos ? end : end + kNext.size();
    }
    return decided_;
  }

 private:
  void on(EventLine line) {
    if (line.name() == "node") {
      begin_node(line);
    } else if (line.name() == "leader") {
      begin_leader(line);
    } else if (node_) {
      on_node(line);
    } else if (leader_) {
      on_leader(std::move(line));
    } else {
      throw std::invalid_argument("a scenario begins with node or leader");
    }
  }

  void recorded(std::string_view text) {
    const auto read = agent::recorded_step_from(text);
    if (!read) throw std::invalid_argument(read.error().message);
    if (const auto* began = std::get_if<agent::NodeBegan>(&read->what)) {
      leader_.reset();
      node_.emplace(began->config);
    } else if (const auto* input = std::get_if<agent::NodeInput>(&read->what); input && node_) {
      step(input->event);
    } else if (const auto* leads = std::get_if<agent::RoundBegan>(&read->what)) {
      node_.reset();
      leads->resumption ? leader_.emplace(leads->config, *leads->resumption)
                        : leader_.emplace(leads->config);
    } else if (const auto* said = std::get_if<rdzv::RoundInput>(&read->what); said && leader_) {
      now_ = said->at;
      step(*said);
    } else {
      throw std::invalid_argument("a line of another core than the one that has begun");
    }
  }

  // ---- a node

  void begin_node(EventLine& line) {
    agent::NodeConfig config;
    config.local_world_size = line.number("workers", 2);
    config.shutdown_timeout = line.time("grace", 30'000ms);
    if (line.has("short_failure_grace")) config.failure_shutdown_timeout = 2s;
    config.hosts_leader = !line.has("without_leader");
    config.kills_orphans = line.has("kills_orphans");
    config.leader_leave_timeout = line.time("leader_leave", 10'000ms);
    const bool has_run = line.has("running");
    line.end();
    leader_.reset();
    node_.emplace(config);
    if (has_run) run_node(Round{0});
  }

  void run_node(Round round) {
    rdzv::RoundStart start;
    start.round = round;
    start.world_size = 2;
    node_->step(rdzv::OpenStore{{round}});
    node_->step(start);
    if (!node_->is_running()) throw std::invalid_argument("the round does not run");
  }

  void on_node(EventLine& line) {
    line.set_round(node_->round());
    if (line.name() == "run") {
      const Round round = line.round();
      line.end();
      return run_node(round);
    }
    step(event_in(node_events(), line));
  }

  void step(const agent::NodeEvent& event) {
    const std::string before = agent::state_of(*node_);
    const auto decisions = in_words(node_->step(event));
    decided_.push_back(step_in_words(before, agent::state_of(*node_), decisions, node_->why()));
  }

  // ---- a leader

  void begin_leader(EventLine& line) {
    config_ = leader_config_in(line);
    now_ = {};
    node_.reset();
    leader_.emplace(config_);
    const int running = line.number("running", 0);
    const bool can_recover = line.has("can_recover");
    line.end();
    if (running == 0) return;
    // All of these nodes have joined, and the first round runs.
    for (int id = 0; id < running; ++id) say(id, hello_of(id));
    if (!leader_->is_running() && leader_->deadline())
      leader_->tick(now_ += config_.last_call_timeout);
    say(0, rdzv::StoreOpened{leader_->round(), 4000});
    if (!leader_->is_running()) throw std::invalid_argument("the round does not run");
    for (int id = 0; can_recover && id < running; ++id) say(id, rdzv::WorkersRecover{{Round{0}}});
  }

  void say(int id, const rdzv::ToLeader& message) {
    leader_->step(now_, NodeId{static_cast<std::uint32_t>(id)}, message);
  }

  rdzv::NodeHello hello_of(int id) const {
    rdzv::NodeHello hello;
    hello.role = "r";
    hello.address = "10.0.0." + std::to_string(id);
    hello.host = "node" + std::to_string(id);
    hello.session = 100 + static_cast<std::uint64_t>(id);
    hello.run_id = config_.run_id;
    hello.min_nodes = config_.min_nodes;
    hello.max_nodes = config_.max_nodes;
    hello.max_restarts = config_.restarts.max_restarts;
    hello.restart_window =
        std::chrono::duration_cast<std::chrono::seconds>(config_.restarts.window);
    hello.no_progress_restarts = config_.restarts.no_progress_restarts;
    return hello;
  }

  rdzv::NodeHello hello_in(EventLine& line, int id) const {
    rdzv::NodeHello hello = hello_of(line.number("host", id));
    hello.node_rank = line.number("rank");
    hello.local_world_size = line.number("workers", 1);
    hello.role = line.field("role").value_or("r");
    hello.run_id = line.field("run_id").value_or(config_.run_id);
    std::tie(hello.min_nodes, hello.max_nodes) =
        nodes_in(line, {config_.min_nodes, config_.max_nodes});
    hello.max_restarts = line.number("restarts", hello.max_restarts);
    hello.shutdown_timeout = line.time("grace", std::chrono::seconds(30));
    if (const auto round = line.number("was_in")) {
      hello.last_round = {Round{static_cast<std::uint32_t>(*round)}, line.number("with_nodes", 2),
                          line.number("spent", 0)};
    }
    return hello;
  }

  void on_leader(EventLine line) {
    const std::string first = line.name();
    if (first == "later") {
      now_ += EventLine::time_in(line.word());
      return line.end();
    }
    if (first.starts_with('+')) {
      now_ += EventLine::time_in(std::string_view(first).substr(1));
      line.end();
      return step({now_, NodeId{}, rdzv::Tick{}});
    }
    const EventLine event = std::move(line).without_name();
    for (const int id : EventLine::numbers_in(first)) {
      EventLine each = event;
      step({now_, NodeId{static_cast<std::uint32_t>(id)}, what_in(each, id)});
    }
  }

  decltype(rdzv::RoundInput::what) what_in(EventLine& line, int id) const {
    line.set_round(leader_->round());
    if (line.name() == "NodeHello") {
      rdzv::ToLeader hello = hello_in(line, id);
      line.end();
      return hello;
    }
    return std::visit([](auto event) -> decltype(rdzv::RoundInput::what) { return event; },
                      event_in(leader_events(), line));
  }

  void step(const rdzv::RoundInput& input) {
    const std::string before = state();
    const auto deadline = leader_->deadline();
    auto decisions = in_words(leader_->step(input));
    if (leader_->deadline() != deadline) decisions.push_back(timer());
    // What the leader's log names, often what nodes are told, too.
    for (const rdzv::LeaderNews& news : leader_->news()) {
      const auto* gone = std::get_if<rdzv::NodeGone>(&news);
      const auto* away = std::get_if<rdzv::NodeTurnedAway>(&news);
      const std::string text = gone != nullptr   ? describe(*gone)
                               : away != nullptr ? name_of(*away)
                                                 : describe(std::get<rdzv::ToBeLeftOut>(news));
      const bool is_told = joined(decisions, "").find(text) != std::string::npos;
      decisions.push_back(is_told ? "log it" : "log: " + text);
    }
    const std::string why = leader_->why().empty() ? "" : std::string(leader_->why().back());
    decided_.push_back(step_in_words(before, state(), decisions, why));
  }

  std::string state() const {
    return agent::state_of(leader_->view(now_)) +
           (leader_->was_everyone_told() ? ", all nodes know" : "");
  }

  std::string timer() const {
    const auto deadline = leader_->deadline();
    if (!deadline) return "no timer";
    const auto left = std::chrono::duration_cast<milliseconds>(*deadline - now_);
    return "timer in " + std::to_string(left.count()) + " ms";
  }

  std::optional<agent::NodeCore> node_;
  std::optional<rdzv::RoundCore> leader_;
  rdzv::RoundConfig config_;
  CoreTime now_{};
  std::vector<std::string> decided_;
};

}  // namespace

std::map<std::filesystem::path, std::string> scenarios() {
  std::map<std::filesystem::path, std::string> texts;
  for (const auto& file : std::filesystem::recursive_directory_iterator(DDPRUN_SCENARIOS)) {
    if (file.path().extension() != ".scenario") continue;
    std::ifstream stream(file.path());
    texts[file.path()] = std::string(std::istreambuf_iterator<char>(stream), {});
  }
  return texts;
}

std::string replayed_scenario(std::string_view text) {
  Scenario scenario;
  std::string replayed;
  std::istringstream lines{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.starts_with(' ')) continue;  // more of what is decided
    if (line.empty() || line.starts_with('#')) {
      replayed += line + "\n";
      continue;
    }
    const std::string events = line.substr(0, line.find(kDecides));
    try {
      const auto decided = scenario.on(events);
      replayed += decided.empty() ? events + "\n"
                                  : wrapped(events + std::string(kDecides), joined(decided, kNext));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("line " + std::to_string(number) + ", " + events + ": " +
                                  error.what());
    }
  }
  return replayed;
}

}  // namespace ddprun::test
