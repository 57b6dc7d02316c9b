// Replacement in place, searched exhaustively: the production RoundCore, NodeCores of two nodes and recovery_core of
// two and three workers, up to three deaths, and every order in which messages and events can be
// delivered. Messages between two parties keep their order, and so does what one worker causes. What the workers do with
// their calls and their memory is searched in unit/worker_lib/recovery_core/recovery_search_test.cpp.
//
// A core is a function of what it was told, in its order; so two worlds whose cores were told the
// same, and whose workers are in the same state, are one, and are searched once.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <deque>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "launcher/ctl/core_text.h"
#include "rendezvous/round/round_core.h"
#include "worker_lib/recovery_core/recovery_core.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr Round kRound{0};

struct Scenario {
  const char* name;
  std::vector<int> workers;  // of each node
  int deaths = 0;
  int budget = 3;
  int steps = 1;          // that may be committed while workers die
  int lost_standbys = 0;  // a standby is dead when it is wanted, or there is none
  int losses = 0;         // of nodes
  int restarts_asked = 0;
  bool one_hangs = false;           // the first worker does not come when it is called
  bool they_take_together = false;  // the state, when they meet: fewer orders, for more deaths
  bool they_end = false;            // workers end with 0 after the last step
  bool round_stays =
      false;  // every death must be replaced, or the step is poison, or all have died
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

struct Worker {
  bool is_alive = true;
  bool has_standby = true;
  bool took_place = false;  // of another one
  bool has_ended_well = false;
  recovery::State state = recovery::Between{.committed = 1};
  std::int64_t committed = 1;  // as its page says; of a newcomer, what that of the one before said
  std::uint32_t called = 0;    // to this generation
  bool is_settled = true;      // it has had the state since a regrouping that is over for all
  std::uint32_t met = 0;       // the other workers, in this generation
  std::uint32_t generation = 0;  // in which it has regrouped
  std::int64_t step_in =
      -1;  // the generation in which it has given its part of the step to the others
  std::int64_t died_at = -1;  // committed steps then

  bool is_taking() const { return std::holds_alternative<recovery::Taking>(state); }
  bool is_in_step() const { return std::holds_alternative<recovery::InStep>(state); }
  // The state of the training, whole.
  bool has_state() const {
    const auto is_whole = [](const recovery::Where& where) {
      return !std::holds_alternative<recovery::Newcomer>(where) &&
             !std::holds_alternative<recovery::Incomplete>(where);
    };
    if (const auto* at = std::get_if<recovery::Regrouping>(&state)) return is_whole(at->where);
    if (const auto* at = std::get_if<recovery::Taking>(&state)) return is_whole(at->where);
    return is_alive && !std::holds_alternative<recovery::Off>(state);
  }
};

struct Node {
  NodeCore core;
  std::vector<Worker> workers;
  std::vector<std::deque<NodeEvent>> events;  // of each worker, not handled yet
  std::deque<rdzv::ToAgent> from_leader;
  std::deque<rdzv::ToLeader> to_leader;
  bool is_lost = false;
  bool was_told_broken = false;
  std::uint64_t told = 0;  // hash of what the core was told
};

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15U + (hash << 6) + (hash >> 2);
  return (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9U;
}

// What distinguishes the events of a search.
template <typename Event>
std::uint64_t hash_of(std::uint64_t hash, std::size_t kind, const Event& event) {
  hash = mixed(hash, kind);
  if constexpr (requires { event.generation; }) hash = mixed(hash, event.generation);
  if constexpr (requires { event.local_rank; })
    hash = mixed(hash, 100U + static_cast<unsigned>(event.local_rank));
  if constexpr (requires { event.rank; })
    hash = mixed(hash, 200U + static_cast<unsigned>(event.rank));
  if constexpr (requires { event.committed; })
    hash = mixed(hash, 300U + static_cast<unsigned>(event.committed));
  if constexpr (requires { event.failure.rank; })
    hash = mixed(hash, 400U + static_cast<unsigned>(event.failure.rank));
  if constexpr (std::is_same_v<Event, WorkerEnded>) {
    hash = mixed(hash, event.failure.has_value() + 2U * event.replaceable.has_value() +
                           4U * (event.replaceable && event.replaceable->has_standby));
    if (event.replaceable) {
      hash = mixed(mixed(hash, static_cast<unsigned>(event.replaceable->committed)),
                   event.replaceable->generation);
    }
  }
  return hash;
}

template <typename Fields>
std::uint64_t hash_of_state(std::uint64_t hash, const Fields& state) {
  const auto add = [&](auto number) { hash = mixed(hash, static_cast<std::uint64_t>(number)); };
  if constexpr (requires { state.committed; }) add(state.committed);
  if constexpr (requires { state.is_one_step_before; }) add(state.is_one_step_before);
  if constexpr (requires { state.at; }) add(state.at.committed * 2 + state.at.is_in_step);
  if constexpr (requires { state.where; }) {
    add(state.where.index());
    hash = std::visit([&](const auto& where) { return hash_of_state(hash, where); }, state.where);
  }
  return hash;
}

class World {
 public:
  explicit World(const Scenario& scenario) : scenario_(&scenario), leader_(config_of(scenario)) {
    for (std::size_t id = 0; id < scenario.workers.size(); ++id) {
      const int count = scenario.workers[id];
      NodeConfig config;
      config.local_world_size = count;
      config.hosts_leader = false;
      nodes_.push_back({NodeCore(config),
                        std::vector<Worker>(static_cast<std::size_t>(count)),
                        std::vector<std::deque<NodeEvent>>(static_cast<std::size_t>(count)),
                        {},
                        {}});
      rdzv::NodeHello hello;
      hello.local_world_size = count;
      hello.host = "node" + std::to_string(id);
      hello.min_nodes = scenario.losses > 0 ? 1 : 2;
      hello.max_nodes = 2;
      hello.max_restarts = scenario.budget;
      leader_hears(id, hello);
    }
    leader_hears(0, rdzv::StoreOpened{kRound, 4000});
    for (Node& node : nodes_) {
      while (!node.from_leader.empty()) handle_message(node);
      step(node, WorkersCanRecover{kRound});
    }
    for (std::size_t id = 0; id < nodes_.size(); ++id) {
      while (!nodes_[id].to_leader.empty()) deliver(id);
    }
    require(leader_.is_running(), "the first round does not run");
  }

  // The worlds that can follow this one.
  std::vector<World> next() const {
    std::vector<World> all;
    const auto then = [&](auto&& what) {
      World world = *this;
      what(world);
      all.push_back(std::move(world));
    };
    if (is_over_) return all;
    for (std::size_t id = 0; id < nodes_.size(); ++id) {
      const Node& node = nodes_[id];
      if (node.is_lost) continue;
      if (!node.from_leader.empty()) then([&](World& w) { w.handle_message(w.nodes_[id]); });
      if (!node.to_leader.empty()) then([&](World& w) { w.deliver(id); });
      for (std::size_t i = 0; i < node.workers.size(); ++i) {
        if (node.events[i].empty()) continue;
        then([&](World& w) {
          Node& its = w.nodes_[id];
          const NodeEvent event = std::move(its.events[i].front());
          its.events[i].pop_front();
          w.step(its, event);
        });
      }
    }
    if (can_meet()) then([](World& w) { w.meet(); });
    for (std::size_t id = 0; id < nodes_.size(); ++id) {
      for (std::size_t i = 0; i < nodes_[id].workers.size(); ++i) {
        if (nodes_[id].workers[i].is_taking()) then([&](World& w) { w.take(w.nodes_[id], i); });
      }
    }
    const bool is_quiet = all.empty();
    if (is_quiet) check_quiet();
    if (is_quiet && leader_.is_running() && leader_.deadline())
      then([](World& w) { w.time_is_over(); });
    // What need not happen.
    if (can_begin_step()) then([](World& w) { w.begin_step(); });
    if (restarts_asked_ < scenario_->restarts_asked && leader_.is_running()) {
      then([](World& w) {
        w.restarts_asked_ += 1;
        w.nodes_[0].to_leader.push_back(rdzv::RestartAsked{kRound});
      });
    }
    for (std::size_t id = 0; id < nodes_.size(); ++id) {
      if (nodes_[id].is_lost) continue;
      if (losses_ < scenario_->losses) then([&](World& w) { w.lose(id); });
      for (std::size_t i = 0; i < nodes_[id].workers.size(); ++i) {
        const Worker& worker = nodes_[id].workers[i];
        if (worker.is_alive && deaths_ < scenario_->deaths) then([&](World& w) { w.die(id, i); });
        if (worker.has_standby && lost_standbys_ < scenario_->lost_standbys) {
          then([&](World& w) {
            w.lost_standbys_ += 1;
            w.nodes_[id].workers[i].has_standby = false;
          });
        }
        if (worker.is_in_step() && worker.step_in == worker.generation) {
          then([&](World& w) { w.end_step(w.nodes_[id], i); });
        }
        if (worker.is_alive && scenario_->they_end && worker.committed == 1 + scenario_->steps &&
            worker.generation == worker.called) {
          then([&](World& w) { w.end_well(id, i); });
        }
      }
    }
    return all;
  }

  std::uint64_t hash() const {
    std::uint64_t hash =
        mixed(leader_told_, static_cast<unsigned>(deaths_ + 10 * losses_ + 100 * lost_standbys_ +
                                                  1000 * restarts_asked_));
    for (const Node& node : nodes_) {
      hash = mixed(hash, node.told);
      hash = mixed(hash, node.is_lost + 2U * node.was_told_broken);
      hash = mixed(hash, node.from_leader.size() * 1000 + node.to_leader.size());
      for (std::size_t i = 0; i < node.workers.size(); ++i) {
        const Worker& worker = node.workers[i];
        hash = mixed(hash, worker.is_alive + 2U * worker.has_standby + 4U * worker.has_ended_well +
                               8U * worker.took_place + 16U * worker.is_settled);
        hash = mixed(hash, worker.called * 1000U + worker.generation);
        hash = mixed(hash, worker.met * 1000U + static_cast<std::uint64_t>(worker.step_in + 1));
        hash = mixed(hash,
                     worker.state.index() * 1000U + static_cast<std::uint64_t>(worker.committed));
        hash =
            std::visit([&](const auto& state) { return hash_of_state(hash, state); }, worker.state);
        hash = mixed(hash, static_cast<std::uint64_t>(worker.died_at));
        for (const NodeEvent& event : node.events[i]) {
          std::visit([&](const auto& e) { hash = hash_of(hash, event.index(), e); }, event);
        }
      }
    }
    return hash;
  }

  std::vector<std::string> trace;

 private:
  static rdzv::RoundConfig config_of(const Scenario& scenario) {
    rdzv::RoundConfig config;
    config.min_nodes = scenario.losses > 0 ? 1 : 2;
    config.max_nodes = 2;
    config.own_node.reset();
    config.restarts.max_restarts = scenario.budget;
    config.restarts.pause_after_quick_loss = {0ms, 0ms};
    return config;
  }

  void require(bool holds, const char* what) const {
    if (holds) return;
    std::string text = std::string(what) + ", after:\n";
    for (const std::string& line : trace) text += "  " + line + "\n";
    throw std::runtime_error(text);
  }

  // ---- the leader

  void leader_hears(std::size_t id, const rdzv::ToLeader& message) {
    std::visit(
        [&](const auto& e) { leader_told_ = hash_of(mixed(leader_told_, id), message.index(), e); },
        message);
    trace.push_back("leader <- node " + std::to_string(id) + ": " + in_words(message));
    before_leader();
    after_leader(leader_.step(now_, NodeId{static_cast<std::uint32_t>(id)}, message), &message);
  }

  void before_leader() {
    was_running_ = leader_.is_running();
    was_stop_ahead_ = leader_.is_stop_ahead();
    was_under_way_ = was_running_ && !was_stop_ahead_ && leader_.deadline().has_value();
    restarts_before_ = leader_.restarts();
  }

  void after_leader(const std::vector<rdzv::ToNode>& out, const rdzv::ToLeader* message) {
    std::size_t orders = 0;
    for (const rdzv::ToNode& each : out) {
      const bool is_order = std::holds_alternative<rdzv::ReplaceWorker>(each.message);
      orders += is_order ? 1 : 0;
      if (is_order) generation_ = std::get<rdzv::ReplaceWorker>(each.message).generation;
      is_over_ |= std::holds_alternative<rdzv::JobEnd>(each.message) ||
                  (std::holds_alternative<rdzv::OpenStore>(each.message) && was_started_);
      nodes_[number(each.to)].from_leader.push_back(each.message);
    }
    was_started_ |= leader_.is_running();
    require(orders == 0 || orders == present(), "not all nodes are told of a replacement");
    replacements_ += orders > 0 ? 1 : 0;
    const bool goes_on = leader_.is_running() || !was_running_;
    if (leader_.is_running()) {
      require(leader_.restarts() == replacements_, "a replacement is not charged once");
    } else if (!goes_on) {
      is_paid_ = was_under_way_;
      is_lost_round_ = present() < nodes_.size();
      is_planned_ = was_stop_ahead_ || std::holds_alternative<rdzv::RestartAsked>(
                                           *(message != nullptr ? message : &kNone));
      const bool may_stop =
          !scenario_->round_stays || is_poison(message) || !has_anyone_the_state();
      require(may_stop, "the round was stopped though every worker can be replaced");
    }
    if (is_over_) check_end();
  }

  bool is_poison(const rdzv::ToLeader* message) const {
    const auto* failed =
        message == nullptr ? nullptr : std::get_if<rdzv::WorkerReplaceable>(message);
    return failed != nullptr && poisoned_ == failed->failure.rank;
  }

  void deliver(std::size_t id) {
    const rdzv::ToLeader message = std::move(nodes_[id].to_leader.front());
    nodes_[id].to_leader.pop_front();
    leader_hears(id, message);
  }

  void time_is_over() {
    require(scenario_->one_hangs, "only the time limit ends a replacement in which nobody hangs");
    leader_told_ = mixed(leader_told_, 77);
    trace.emplace_back("leader <- the time limit is over");
    now_ = *leader_.deadline();
    before_leader();
    after_leader(leader_.tick(now_), nullptr);
  }

  void lose(std::size_t id) {
    losses_ += 1;
    Node& node = nodes_[id];
    node.is_lost = true;
    for (Worker& worker : node.workers) end(worker);
    leader_told_ = mixed(leader_told_, 88 + id);
    trace.push_back("node " + std::to_string(id) + " is lost");
    before_leader();
    after_leader(leader_.step(now_, NodeId{static_cast<std::uint32_t>(id)},
                              rdzv::LinkEvent(rdzv::NodeSilent{})),
                 nullptr);
  }

  std::size_t present() const {
    std::size_t count = 0;
    for (const Node& node : nodes_) count += node.is_lost ? 0 : 1;
    return count;
  }

  // ---- nodes

  void handle_message(Node& node) {
    const rdzv::ToAgent message = std::move(node.from_leader.front());
    node.from_leader.pop_front();
    const auto* stop = std::get_if<rdzv::RoundStop>(&message);
    const bool is_failure = stop != nullptr && stop->why == rdzv::RoundStop::Why::kFailure;
    require(!is_failure || !node.core.is_running() || node.was_told_broken || live_of(node) == 0,
            "workers are stopped for a failure that they were not told of");
    std::visit([&](const auto& each) { step(node, each); }, message);
  }

  static int live_of(const Node& node) {
    int live = 0;
    for (const Worker& worker : node.workers) live += worker.is_alive ? 1 : 0;
    return live;
  }

  void step(Node& node, const NodeEvent& event) {
    std::deque<NodeEvent> queue{event};
    while (!queue.empty()) {
      const NodeEvent now = std::move(queue.front());
      queue.pop_front();
      std::visit([&](const auto& e) { node.told = hash_of(node.told, now.index(), e); }, now);
      trace.push_back("node " + std::to_string(&node - nodes_.data()) + " <- " + in_words(now));
      for (const NodeAction& action : node.core.step(now)) {
        if (const auto* tell = std::get_if<TellLeader>(&action)) {
          node.to_leader.push_back(tell->message);
        } else if (std::holds_alternative<TellGroupBroken>(action)) {
          node.was_told_broken = true;
        } else if (const auto* replace = std::get_if<Replace>(&action)) {
          perform(node, *replace, queue);
        } else if (const auto* hold = std::get_if<HoldWorkers>(&action)) {
          queue.emplace_back(WorkersHeld{kRound, -1, {}, hold->until});
        } else if (const auto* signal = std::get_if<SignalWorker>(&action)) {
          if (signal->signal != SIGCONT) kill(node, static_cast<std::size_t>(signal->local_rank));
        } else if (std::holds_alternative<CloseRound>(action)) {
          require(live_of(node) == 0, "a round was closed over live workers");
          queue.emplace_back(RoundClosed{kRound});
        }
      }
    }
  }

  void perform(Node& node, const Replace& replace, std::deque<NodeEvent>& queue) {
    if (replace.local_rank) {
      Worker& worker = node.workers[static_cast<std::size_t>(*replace.local_rank)];
      require(!worker.is_alive, "two processes have the same rank");
      if (!worker.has_standby) {
        queue.emplace_back(WorkerEnded{kRound, *replace.local_rank, replace.failure});
      } else {
        worker.is_alive = worker.took_place = true;
        worker.is_settled = false;
        worker.called = worker.met = worker.generation = 0;
        worker.step_in = -1;
        worker.state = recovery::Prepared{};
        tell(worker, recovery::Joined{});
        tell(worker, recovery::Placed{});
      }
    }
    for (Worker& worker : node.workers) {
      if (!worker.is_alive) continue;
      require(replace.generation > worker.called, "a worker is called to the past");
      worker.called = replace.generation;
    }
  }

  // ---- workers

  static rdzv::WorkerFailure failure_of(int rank) {
    rdzv::WorkerFailure failure;
    failure.rank = rank;
    failure.pid = 1000;
    failure.status = ExitStatus::killed(SIGKILL);
    return failure;
  }

  int rank_of(const Node& node, std::size_t index) const {
    int rank = static_cast<int>(index);
    for (const Node* each = nodes_.data(); each != &node; ++each)
      rank += static_cast<int>(each->workers.size());
    return rank;
  }

  void die(std::size_t id, std::size_t index) {
    deaths_ += 1;
    Node& node = nodes_[id];
    Worker& worker = node.workers[index];
    const int rank = rank_of(node, index);
    trace.push_back("rank " + std::to_string(rank) + " dies in generation " +
                    std::to_string(worker.generation) + ", " + std::to_string(worker.committed) +
                    " steps");
    const bool is_back = worker.generation > 0 && worker.died_at == worker.committed;
    if (is_back && worker.generation == worker.called) poisoned_ = rank;
    worker.died_at = worker.committed;
    WorkerEnded ended{kRound, static_cast<int>(index), failure_of(rank)};
    if ((worker.has_standby || worker.took_place) && node.core.is_running()) {
      ended.replaceable = Replaceable{worker.committed, worker.generation, worker.has_standby};
    }
    end(worker);
    node.events[index].emplace_back(ended);
  }

  static void end(Worker& worker) {
    worker.is_alive = false;
    worker.state = recovery::Off{};
  }

  void end_well(std::size_t id, std::size_t index) {
    Worker& worker = nodes_[id].workers[index];
    end(worker);
    worker.has_ended_well = true;
    nodes_[id].events[index].emplace_back(WorkerEnded{kRound, static_cast<int>(index), {}});
  }

  void kill(Node& node, std::size_t index) {
    if (!node.workers[index].is_alive) return;
    end(node.workers[index]);
    node.events[index].emplace_back(
        WorkerEnded{kRound, static_cast<int>(index), failure_of(rank_of(node, index))});
  }

  bool are_all_alive() const {
    for (const Node& node : nodes_) {
      if (live_of(node) < static_cast<int>(node.workers.size())) return false;
    }
    return true;
  }
  bool are_all(std::uint32_t Worker::*in, std::uint32_t generation) const {
    for (const Node& node : nodes_) {
      for (const Worker& worker : node.workers) {
        if (worker.*in != generation) return false;
      }
    }
    return true;
  }
  // The leader counts on no newcomer before all have regrouped with it.
  bool has_anyone_the_state() const {
    return std::ranges::any_of(nodes_, [](const Node& node) {
      return std::ranges::any_of(node.workers, [](const Worker& worker) {
        return worker.is_settled && worker.has_state();
      });
    });
  }
  void each_worker(const auto& visit) {
    for (Node& node : nodes_) {
      for (std::size_t i = 0; i < node.workers.size(); ++i) visit(node, i, node.workers[i]);
    }
  }

  recovery::Outcome tell(Worker& worker, const recovery::Event& event) {
    try {
      recovery::Outcome outcome = recovery::step(worker.state, event);
      worker.state = outcome.state;
      for (const recovery::Action& action : outcome.actions) {
        if (const auto* regrouped = std::get_if<recovery::TellRegrouped>(&action)) {
          worker.committed = regrouped->committed;
        } else if (const auto* committed = std::get_if<recovery::TellCommitted>(&action)) {
          worker.committed = committed->committed;
        }
      }
      return outcome;
    } catch (const recovery::Bug& bug) {
      require(false, bug.what());
      throw;
    }
  }

  bool can_meet() const {
    const std::uint32_t called = nodes_[0].workers[0].called;
    return !scenario_->one_hangs && called > 0 && are_all_alive() &&
           are_all(&Worker::called, called) && !are_all(&Worker::met, called);
  }
  // They are told their places, and the donor gives its state at once; each takes it in its own time.
  void meet() {
    trace.emplace_back("all workers meet");
    recovery::Met met;
    each_worker([&](Node&, std::size_t, Worker& worker) {
      tell(worker, recovery::Regroup{});
      met.places.push_back(recovery::place_of(std::get<recovery::Regrouping>(worker.state)));
    });
    each_worker([&](Node& node, std::size_t i, Worker& worker) {
      tell(worker, met);
      met.self += 1;
      worker.met = worker.called;
      if (worker.is_taking()) return;
      node.events[i].emplace_back(WorkerCannotRegroup{kRound, static_cast<int>(i)});
    });
    if (!scenario_->they_take_together) return;
    each_worker([&](Node& node, std::size_t i, Worker& worker) {
      if (worker.is_taking()) take(node, i);
    });
  }
  void take(Node& node, std::size_t i) {
    Worker& worker = node.workers[i];
    trace.push_back("rank " + std::to_string(rank_of(node, i)) + " has the state");
    tell(worker, recovery::Took{.calls = 0, .mirror = {true, true, true}});
    worker.generation = worker.met;
    if (are_all(&Worker::generation, worker.met)) {
      each_worker([&](Node&, std::size_t, Worker& each) {
        each.is_settled = true;
        require(each.committed == worker.committed,
                "all workers have regrouped, and they do not count the same steps");
      });
    }
    node.events[i].emplace_back(WorkerRegrouped{kRound, static_cast<int>(i), worker.generation});
  }

  // A step waits for all, so they come to it together; each ends it in its own time.
  bool can_begin_step() const {
    const Worker& first = nodes_[0].workers[0];
    if (first.committed == 1 + scenario_->steps || !leader_.is_running() || !are_all_alive() ||
        !are_all(&Worker::called, first.called) || !are_all(&Worker::generation, first.called)) {
      return false;
    }
    return std::ranges::all_of(nodes_, [&](const Node& node) {
      return std::ranges::all_of(node.workers, [&](const Worker& worker) {
        return worker.committed == first.committed && !worker.is_taking() &&
               worker.step_in < worker.generation + (worker.is_in_step() ? 0 : 1);
      });
    });
  }
  void begin_step() {
    trace.emplace_back("all workers are in a step");
    each_worker([&](Node&, std::size_t, Worker& worker) {
      // The first one of a newcomer may be committed already.
      for (int tries = 0; tries < 2 && !worker.is_in_step(); ++tries) {
        tell(worker, recovery::StepBegins{});
      }
      require(worker.is_in_step(), "a worker does not come to its step");
      worker.step_in = worker.generation;
    });
  }

  void end_step(Node& node, std::size_t i) {
    Worker& worker = node.workers[i];
    trace.push_back("rank " + std::to_string(rank_of(node, i)) + " ends its step");
    const std::int64_t before = worker.committed;
    tell(worker, recovery::StepOver{});
    require(worker.committed == before + 1, "a step is over, and the worker does not count it");
  }

  // ---- what must hold

  // Nothing is on its way.
  void check_quiet() const {
    if (!leader_.is_running())
      return require(false, "the round is not over, and nothing happens any more");
    if (leader_.deadline()) return;  // see time_is_over()
    bool is_anyone_done = false;
    for (const Node& node : nodes_) {
      for (const Worker& worker : node.workers) is_anyone_done |= worker.has_ended_well;
    }
    require(is_anyone_done || are_all_alive(), "a worker is dead, and nobody replaces it");
    for (const Node& node : nodes_) {
      for (const Worker& worker : node.workers) {
        require(worker.has_ended_well || worker.generation == generation_,
                "a replacement is over, and a worker is not in its generation");
      }
    }
  }

  void check_end() const {
    const auto* outcome = leader_.outcome();
    if (outcome != nullptr && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded) {
      for (const Node& node : nodes_) {
        for (const Worker& worker : node.workers)
          require(worker.has_ended_well, "success, and not of all");
      }
    } else if (outcome != nullptr) {
      require(!outcome->sentence.empty() == (poisoned_ >= 0 && outcome->cause->rank == poisoned_) ||
                  outcome->restarts == scenario_->budget,
              "the job failed with budget left");
    } else if (!is_lost_round_ && losses_ == 0 && !is_planned_) {
      require(leader_.restarts() == replacements_ + (is_paid_ ? 0 : 1),
              "a restart after a replacement is not charged once");
    }
    require(leader_.restarts() <= scenario_->budget, "more restarts than allowed");
  }

  inline static const rdzv::ToLeader kNone = rdzv::Goodbye{};

  const Scenario* scenario_;
  rdzv::RoundCore leader_;
  CoreTime now_{};
  std::vector<Node> nodes_;
  std::uint64_t leader_told_ = 0;
  std::uint32_t generation_ = 0;
  int replacements_ = 0;
  int deaths_ = 0;
  int losses_ = 0;
  int lost_standbys_ = 0;
  int restarts_asked_ = 0;
  int poisoned_ = -1;  // the rank that its step has ended twice
  int restarts_before_ = 0;
  bool was_running_ = false;
  bool was_under_way_ = false;
  bool was_started_ = false;
  bool is_paid_ = false;
  bool is_lost_round_ = false;
  bool was_stop_ahead_ = false;
  bool is_planned_ = false;
  bool is_over_ = false;  // the next round is opened, or the job has ended
};

const Scenario kScenarios[] = {
    {.name = "TwoRanks", .workers = {1, 1}, .deaths = 2, .round_stays = true},
    {.name = "ThreeRanks", .workers = {2, 1}, .deaths = 2, .round_stays = true},
    {.name = "ThreeRanksThreeDeaths",
     .workers = {2, 1},
     .deaths = 3,
     .budget = 9,
     .steps = 0,
     .they_take_together = true,
     .round_stays = true},
    {.name = "ThreeRanksWithOneRestart", .workers = {2, 1}, .deaths = 2, .budget = 1, .steps = 0},
    {.name = "AStandbyIsLost", .workers = {2, 1}, .deaths = 2, .steps = 0, .lost_standbys = 1},
    {.name = "ANodeIsLost", .workers = {2, 1}, .deaths = 2, .steps = 0, .losses = 1},
    {.name = "ARestartIsAskedFor", .workers = {1, 1}, .deaths = 2, .steps = 0, .restarts_asked = 1},
    {.name = "OneHangs", .workers = {2, 1}, .deaths = 2, .steps = 0, .one_hangs = true},
    {.name = "TheyEnd", .workers = {1, 1}, .deaths = 2, .steps = 0, .they_end = true},
    {.name = "ThreeEnd", .workers = {2, 1}, .deaths = 1, .steps = 0, .they_end = true},
};

class ReplacementSearch : public ::testing::TestWithParam<Scenario> {};

TEST_P(ReplacementSearch, HoldsInEveryOrderOfEvents) {
  constexpr std::size_t kMost = 3'000'000;
  std::unordered_set<std::uint64_t> known;
  std::vector<World> stack;
  try {
    stack.emplace_back(GetParam());
    known.insert(stack.back().hash());
    while (!stack.empty()) {
      const World world = std::move(stack.back());
      stack.pop_back();
      for (World& next : world.next()) {
        if (known.insert(next.hash()).second) stack.push_back(std::move(next));
      }
      ASSERT_LT(known.size(), kMost) << "the search does not end";
    }
  } catch (const std::runtime_error& violation) {
    FAIL() << violation.what();
  }
  std::cout << known.size() << " worlds\n";
}

INSTANTIATE_TEST_SUITE_P(All, ReplacementSearch, ::testing::ValuesIn(kScenarios),
                         [](const auto& scenario) { return std::string(scenario.param.name); });

}  // namespace
}  // namespace ddprun::agent
