#include "tests/sim/simulation.h"

#include <algorithm>
#include <csignal>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"
#include "tests/sim/virtual_agent.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
using Kind = Fault::Kind;

// The limit from the last fault to the end of the job: time to notice silence (8 s) or a stuck
// agent (16 s), to stop workers (6 s), to wait for other nodes (15 s) and to run the round (6 s),
// some of them more than once.
constexpr auto kCalmLimit = 110s;
constexpr std::uint64_t kEventsPerNodeMax = 20'000;
constexpr auto kShutdownTimeout = 4s;
constexpr auto kKillTimeout = 2s;
constexpr std::uint16_t kLeaderPort = 29400;

class Simulation : VirtualJob {
 public:
  Simulation(const Schedule& schedule, bool with_trace)
      : VirtualJob(schedule.seed + 1, with_trace, schedule.nodes.size(), schedule.delay_max,
                   schedule.workers, schedule.recovery),
        schedule_(schedule),
        invariants_(schedule) {}

  Result run() {
    Result result = VirtualJob::run(schedule_.calm + kCalmLimit,
                                    kEventsPerNodeMax * (schedule_.nodes.size() + 1));
    result.rounds = invariants_.rounds();
    return result;
  }

 private:
  void begin() override {
    start_leader();
    for (std::size_t slot = 0; slot < schedule_.nodes.size(); ++slot) {
      queue.at(schedule_.nodes[slot].starts, [this, slot] {
        if (current[slot] == nullptr) start_agent(static_cast<int>(slot));
      });
    }
    for (const Fault& fault : schedule_.faults) {
      queue.at(fault.at, [this, &fault] { inject(fault); });
    }
  }

  // ---- agents

  std::string leader_host() const { return schedule_.leader_is_alone ? "10.1.0.1" : host_of(0); }
  bool hosts_leader(const VirtualAgent& agent) const { return agent.process() == leader_process_; }

  void start_agent(int slot) {
    const Node& node = schedule_.nodes[static_cast<std::size_t>(slot)];
    const bool leads = slot == 0 && !schedule_.leader_is_alone;
    AgentSettings settings;
    settings.slot = slot;
    settings.node = {node.workers, kShutdownTimeout, kKillTimeout, /*hosts_leader=*/false};
    settings.node.leader_leave_timeout = keep_alive_.timeout() + 2 * keep_alive_.interval;
    settings.leads_for_good = leads;
    rdzv::NodeHello& hello = settings.hello;
    hello.local_world_size = node.workers;
    hello.role = node.role;
    hello.host = node.host;
    hello.address = std::to_string(agents.size());  // the invariants find the agent by it
    hello.node_rank = node.node_rank;
    hello.min_nodes = schedule_.config.min_nodes;
    hello.max_nodes = schedule_.config.max_nodes;
    hello.max_restarts = schedule_.config.restarts.max_restarts;
    hello.restart_window =
        std::chrono::duration_cast<std::chrono::seconds>(schedule_.config.restarts.window);
    hello.no_progress_restarts = schedule_.config.restarts.no_progress_restarts;
    hello.shutdown_timeout = kShutdownTimeout;
    const auto process = leads ? leader_process_ : std::make_shared<Process>();
    VirtualAgent& its = add(std::move(settings), process);
    its.start([&](rdzv::LeaderEvents events) -> std::unique_ptr<rdzv::Leader> {
      if (leads) return make_server(std::move(events));
      rdzv::RoundClientOptions options;
      options.leader = {leader_host(), kLeaderPort};
      options.keep_alive = keep_alive_;
      options.join_timeout = schedule_.config.join_timeout;
      return rdzv::make_round_client(network.transport(host_of(slot), slot, process),
                                     std::move(options), std::move(events));
    });
  }

  // ---- workers

  void workers_start(const VirtualAgent& agent, const rdzv::RoundStart& start) override {
    const NodeId* newest = nullptr;
    for (const auto& [id, its] : nodes_) {
      if (its == &agent) newest = &id;
    }
    if (newest != nullptr) invariants_.workers_started(*newest, start);
  }

  void worker_ended(GroupKey key, const ExitStatus& status, bool by_itself) override {
    if (leaders_[key.port] != leader_number_) return;
    if (status.is_success()) {
      invariants_.worker_succeeded(key.round);
    } else if (by_itself) {
      invariants_.worker_failed_by_itself(key.round);
    }
  }

  void leader_says(const VirtualAgent&, const rdzv::LeaderEvent& event) override {
    const auto* warning = std::get_if<rdzv::LeaderWarning>(&event);
    require(warning == nullptr || warning->line.find("breaks the protocol") == std::string::npos,
            "a message to the leader was lost");
  }

  // ---- the leader

  std::unique_ptr<rdzv::RoundServer> make_server(rdzv::LeaderEvents events) {
    events.on_core_step = [this](const rdzv::RoundInput& input,
                                 const std::vector<rdzv::ToNode>& out) {
      core_stepped(input, out);
    };
    rdzv::RoundServerOptions options;
    options.round = schedule_.config;
    options.keep_alive = keep_alive_;
    auto server = std::make_unique<rdzv::RoundServer>(
        network.transport(leader_host(), 0, leader_process_), std::move(options), std::move(events),
        network.bind(leader_host(), kLeaderPort));
    server_ = server.get();
    invariants_.before_step(server_->core());
    return server;
  }

  // A new leader at the same endpoint; it has no state of the old one.
  void start_leader() {
    leader_number_ += 1;
    trace("leader ", leader_number_, " starts");
    network.set_dark(leader_host(), false);
    if (leader_process_) {
      // A host that comes back after a power loss answers unknown connections with a reset.
      network.reset_of(leader_process_);
      invariants_.leader_began();
    }
    leader_process_ = std::make_shared<Process>();
    server_ = nullptr;
    nodes_.clear();
    views_.clear();
    queue.after(keep_alive_.interval, leader_process_, [this] { check_each_interval(); });
    if (!schedule_.leader_is_alone) {
      if (leader_number_ > 0) start_agent(0);
      return;
    }
    rdzv::LeaderEvents events;
    events.on_event = [](const rdzv::LeaderEvent&) {};
    lone_server_ = make_server(std::move(events));
    leader_process_->when_idle = [this, process = leader_process_.get()] {
      if (!lone_server_->may_exit()) return;
      trace("leader exits");
      lone_server_.reset();
      process->is_alive = false;
    };
  }

  void kill_leader(std::optional<CoreTime::duration> comes_back_after) {
    was_end_near_ = server_ != nullptr && server_->core().has_ended();
    leader_process_->is_alive = false;
    if (!schedule_.leader_is_alone && current[0] != nullptr) kill(*current[0]);
    network.reset_of(leader_process_);
    lose_leader(comes_back_after);
  }

  void lose_leader(std::optional<CoreTime::duration> comes_back_after) {
    leader_was_killed_ = true;
    is_leader_gone_ = !comes_back_after;
    if (comes_back_after) queue.after(*comes_back_after, [this] { start_leader(); });
  }

  void core_stepped(const rdzv::RoundInput& input, const std::vector<rdzv::ToNode>& out) {
    const rdzv::RoundCore& core = server_->core();
    const auto* message = std::get_if<rdzv::ToLeader>(&input.what);
    const auto* event = std::get_if<rdzv::LinkEvent>(&input.what);
    trace_step(leader_number_, input, out);
    if (const auto* hello = std::get_if<rdzv::NodeHello>(message)) {
      VirtualAgent& agent = *agents[static_cast<std::size_t>(std::stoi(hello->address))];
      trace("agent ", agent.number(), " is node ", number(input.node));
      nodes_[input.node] = &agent;
      views_[input.node] = {*hello, true, agent.facts()};
    } else if (event != nullptr) {
      views_[input.node].is_connected = std::holds_alternative<rdzv::NodeResumed>(*event);
    }
    invariants_.after_step(core, input, out, views_);
    const bool is_silence = std::get_if<rdzv::NodeSilent>(event) != nullptr;
    for (const rdzv::ToNode& each : out) {
      const bool is_late = std::holds_alternative<rdzv::DeclaredLost>(each.message) && !is_silence;
      require(!is_late || may_be_late(*nodes_.at(each.to)),
              "a node that does what it is told to was lost");
      if (const auto* start = std::get_if<rdzv::RoundStart>(&each.message)) {
        leaders_[start->master_port] = leader_number_;
      }
    }
    invariants_.before_step(core);
  }

  // Dead nodes must be noticed. A partition may delay messages that a node sent before it died.
  void check_each_interval() {
    if (server_ == nullptr) return;
    for (const auto& [id, agent] : nodes_) {
      if (!agent->died() || !server_->core().has(id)) continue;
      const auto cuts_it = [slot = agent->slot()](const Fault& fault) {
        return fault.kind == Kind::kPartition && fault.slot == slot;
      };
      const bool was_cut = std::ranges::any_of(schedule_.faults, cuts_it);
      const CoreTime since = std::max(*agent->died(), leader_resumed_);
      require(was_cut || queue.now() - since < keep_alive_.timeout() + 2 * keep_alive_.interval,
              "a dead node was not noticed in time");
    }
    queue.after(keep_alive_.interval, leader_process_, [this] { check_each_interval(); });
  }

  // ---- faults

  void inject(const Fault& fault) {
    VirtualAgent* agent = current[static_cast<std::size_t>(fault.slot)];
    const bool is_of_agent = fault.kind == Kind::kLeaderKilled ? !schedule_.leader_is_alone
                                                               : fault.kind != Kind::kPartition;
    if (is_of_agent && (agent == nullptr || !agent->is_alive())) return;
    trace("FAULT ", [&] { return to_string(fault); });
    const auto run_in_agent = [&](auto what) {
      queue.run_in(agent->process(), [agent, what] { what(*agent); });
    };
    switch (fault.kind) {
      case Kind::kWorkerDies:
        return agent->fail_worker();
      case Kind::kAgentKilled:
        if (hosts_leader(*agent)) return kill_leader(fault.comes_back_after);
        kill(*agent);
        break;
      case Kind::kPowerLost:
        agent->kill();
        network.set_dark(host_of(fault.slot), true);
        if (hosts_leader(*agent)) return lose_leader(fault.comes_back_after);
        break;
      case Kind::kPaused:
        agent->process()->is_paused = true;
        if (hosts_leader(*agent)) invariants_.leader_pauses();
        return end_fault_after(fault.length, [this, process = agent->process()] {
          if (process == leader_process_) leader_resumed_ = queue.now();
          queue.resume(process);
        });
      case Kind::kConnectionLost:
        return network.reset_of(fault.slot);
      case Kind::kPartition:
        for (const End towards : {kAgentEnd, kLeaderEnd}) {
          const bool is_cut = towards == kLeaderEnd ? fault.towards_leader : fault.from_leader;
          if (is_cut) cut(fault.slot, towards, fault.length);
        }
        return;
      case Kind::kStopSignal:
        return run_in_agent([](VirtualAgent& its) { its.signal(/*is_preemption=*/false); });
      case Kind::kPreemptSignal:
        return run_in_agent([](VirtualAgent& its) { its.signal(/*is_preemption=*/true); });
      case Kind::kRestartAsked:
        return run_in_agent([](VirtualAgent& its) { its.say(rdzv::RestartAsked{its.round()}); });
      case Kind::kStopAsked:
        return run_in_agent([](VirtualAgent& its) { its.say(rdzv::StopAsked{SIGTERM}); });
      case Kind::kDrainAsked:
        return ask_to_drain(*agent, fault.towards_leader ? rdzv::DrainAsked::What::kDrainAtOnce
                                                         : rdzv::DrainAsked::What::kDrain);
      case Kind::kUndrainAsked:
        return ask_to_drain(*agent, rdzv::DrainAsked::What::kUndrain);
      case Kind::kUnfit:
        return run_in_agent([is_fit = fault.towards_leader](VirtualAgent& its) {
          its.say(is_fit ? rdzv::ToLeader(rdzv::NodeFit{})
                         : rdzv::ToLeader(rdzv::NodeUnfit{{"a GPU is gone"}}));
        });
      case Kind::kStuck:
        if (hosts_leader(*agent)) return;
        agent->set_stuck(true);
        return end_fault_after(fault.length, [this, agent] {
          queue.run_in(agent->process(), [agent] { agent->set_stuck(false); });
        });
      case Kind::kLeaderKilled:
        if (leader_process_->is_alive) kill_leader(fault.comes_back_after);
        return;
    }
    if (!fault.comes_back_after) return;
    queue.after(*fault.comes_back_after, [this, slot = fault.slot] {
      network.set_dark(host_of(slot), false);
      start_agent(slot);
    });
  }

  // At the agent itself.
  void ask_to_drain(VirtualAgent& agent, rdzv::DrainAsked::What what) {
    const auto found =
        std::ranges::find(nodes_, &agent, [](const auto& each) { return each.second; });
    if (found == nodes_.end()) return;
    const rdzv::NodeHello& hello = views_.at(found->first).hello;
    queue.run_in(agent.process(),
                 [&agent, asked = rdzv::DrainAsked{{hello.host, hello.address}, what, "Ann"}] {
                   agent.say(asked);
                 });
  }

  // ---- the end

  bool may_be_late(const VirtualAgent& agent) const {
    const auto holds_it_up = [&](const Fault& fault) {
      const bool is_its = fault.slot == agent.slot();
      const bool is_of_leader = fault.slot == 0 && !schedule_.leader_is_alone;
      return fault.kind == Kind::kPaused ? is_its || is_of_leader
                                         : is_its && fault.kind == Kind::kPartition;
    };
    return agent.was_stuck() || agent.died() || std::ranges::any_of(schedule_.faults, holds_it_up);
  }

  // A few short breaks of a connection do not allow it.
  bool may_lose_leader(const VirtualAgent& agent) const {
    if (leader_was_killed_ || agent.was_stuck() || !agent.was_welcome()) return true;
    int breaks = 0;
    for (const Fault& fault : schedule_.faults) {
      const bool is_of_leader = fault.slot == 0 && !schedule_.leader_is_alone;
      if (fault.kind == Kind::kPaused && (fault.slot == agent.slot() || is_of_leader)) return true;
      if (fault.slot != agent.slot()) continue;
      if (fault.kind == Kind::kPartition) return true;
      breaks += fault.kind == Kind::kConnectionLost ? 1 : 0;
    }
    return breaks > 2;
  }

  void check_end() override {
    const auto& outcome = invariants_.outcome();
    // `ddpctl leader` waits for the first node without a time limit.
    const bool nobody_came = schedule_.leader_is_alone && nodes_.empty();
    const bool is_leader_excused = is_leader_gone_ || nobody_came;
    require(is_leader_excused || outcome, "the job has not ended long after all faults");
    require(is_leader_excused || !leader_process_->is_alive,
            "the leader waits for somebody for ever");
    for (const auto& agent : agents) {
      if (!agent->outcome()) continue;  // killed
      const int exit_code = agent->outcome()->exit_code;
      const bool has_left =
          agent->was_told_to_leave() && (exit_code == 128 + SIGTERM || exit_code == kExitPreempted);
      // It joined again, or for the first time, when the leader was gone.
      const bool is_without_leader =
          exit_code == kExitLeaderLost || exit_code == kExitRendezvousTimeout;
      const bool has_lost_leader = is_without_leader && may_lose_leader(*agent);
      const bool is_excused = has_left || has_lost_leader || exit_code == kExitUsage;
      require(is_excused || invariants_.was_outcome(*agent->outcome()),
              "an agent ended otherwise than the job");
    }
    const bool was_new_leader =
        schedule_.has_only_new_leader && leader_number_ > 0 && !was_end_near_;
    require(!was_new_leader || (outcome && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded &&
                                outcome->restarts == 0),
            "a job did not go on under a leader that came back at once");
    require(!schedule_.has_only_replacements ||
                (outcome && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded &&
                 invariants_.rounds() == 1 && outcome->restarts == outcome->in_place),
            "a worker that could be replaced in place was not");
    const auto may = [this](const auto& agent) { return may_lose_leader(*agent); };
    if (!schedule_.has_only_short_drops || std::ranges::any_of(agents, may)) return;
    require(
        outcome && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded && invariants_.rounds() == 1,
        "a connection that broke for a moment ended a round");
  }

  const Schedule& schedule_;
  Invariants invariants_;
  Invariants::Views views_;
  rdzv::KeepAlive keep_alive_;

  ProcessPtr leader_process_;
  rdzv::RoundServer* server_ = nullptr;             // in that process, while it is alive
  std::unique_ptr<rdzv::RoundServer> lone_server_;  // `ddpctl leader`
  int leader_number_ = -1;                 // counts the processes that lead, one after another
  std::map<NodeId, VirtualAgent*> nodes_;  // by the ids of this leader
  std::map<std::uint16_t, int> leaders_;   // by the port of the store of a round that it began
  bool leader_was_killed_ = false;
  bool is_leader_gone_ = false;  // for good
  bool was_end_near_ = false;    // when the leader was killed, some agents knew of the end
  CoreTime leader_resumed_{};
};

}  // namespace

Result simulate(std::uint64_t seed, bool with_trace) {
  const Schedule schedule = schedule_of(seed);
  Result result = Simulation(schedule, with_trace).run();
  if (with_trace) result.trace = to_string(schedule) + result.trace;
  return result;
}

}  // namespace ddprun::sim
