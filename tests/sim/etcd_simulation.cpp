#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/etcd/job_keys.h"
#include "tests/sim/virtual_agent.h"
#include "tests/sim/virtual_etcd.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;

constexpr CoreTime kCalm{12s};  // no fault after this time
constexpr CoreTime kEnd{150s};  // the end of the simulation
constexpr std::uint64_t kEventsMax = 400'000;
constexpr int kNodesMax = 5;
constexpr int kRecoveringPercent = 40;
constexpr int kSlowExecPercent = 15;

// A round that was begun on some node, in one incarnation of the job.
struct Begun {
  GroupKey group;
  std::string place;
  int world_size = 0;
  int restarts = 0;
  std::set<int> ranks;
};

class Simulation : VirtualJob {
 public:
  Simulation(std::uint64_t seed, bool with_trace)
      : VirtualJob(seed, with_trace, kNodesMax, 5ms, {500ms, 1ms, 300ms, 0, 0}, {}),
        etcd_(queue, random, kCalm),
        keys_("/ddprun", "job") {
    max_nodes_ = random.number(2, kNodesMax);
    min_nodes_ = random.number(1, max_nodes_);
    max_restarts_ = random.number(0, 3);
    timing.training = random.time(500ms, 4s);
    if (habits.chance(kRecoveringPercent)) recovery.announces_percent = 100;
    if (habits.chance(kSlowExecPercent)) timing.slow_exec_percent = 30;
    etcd_.on_put = [this](int who, const rdzv::wire::EtcdPut& put) { check_put(who, put); };
    etcd_.on_revoke = [this](int who, std::int64_t lease) { check_revoke(who, lease); };
  }

  Result run() {
    Result result = VirtualJob::run(kEnd, kEventsMax);
    result.rounds = static_cast<int>(rounds_.size());
    return result;
  }

 private:
  void begin() override {
    for (int slot = 0; slot < max_nodes_; ++slot) {
      queue.after(random.time(0us, 300ms), [this, slot] { start_agent(slot); });
    }
    for (int faults = random.number(0, 5); faults > 0; --faults) {
      queue.at(CoreTime(random.time(0us, 6s)), [this] { inject(); });
    }
  }

  void start_agent(int slot) {
    AgentSettings settings;
    settings.slot = slot;
    settings.node = {1, 4s, 2s, /*hosts_leader=*/false};
    settings.hello.run_id = "job";
    settings.hello.host = "h" + std::to_string(slot);
    settings.hello.min_nodes = min_nodes_;
    settings.hello.max_nodes = max_nodes_;
    settings.hello.max_restarts = max_restarts_;
    VirtualAgent& its = add(std::move(settings), std::make_shared<Process>());
    its.start([&](rdzv::LeaderEvents events) { return make_leader(its, std::move(events)); });
  }

  std::unique_ptr<rdzv::Leader> make_leader(const VirtualAgent& agent, rdzv::LeaderEvents events) {
    events.on_core_step = [this, leader = agent.number()](const rdzv::RoundInput& input,
                                                          const std::vector<rdzv::ToNode>& out) {
      trace_step(leader, input, out);
    };
    const std::string host = host_of(agent.number());
    rdzv::EtcdLeaderOptions options;
    options.etcd.endpoints = {{"10.2.0.1", 2379}, {"10.2.0.2", 2379}};
    options.etcd.lease = 2s;
    options.etcd.local_addr = host;
    options.round.run_id = "job";
    options.round.min_nodes = min_nodes_;
    options.round.max_nodes = max_nodes_;
    options.round.restarts.max_restarts = max_restarts_;
    options.round.join_timeout = 20s;
    options.round.last_call_timeout = 1s;
    options.join_timeout = 60s;
    rdzv::EtcdLeaderParts parts;
    parts.transport = network.transport(host, agent.slot(), agent.process());
    parts.http = etcd_.client(agent.number(), agent.process());
    parts.open_port = [this](const std::string& at, const std::vector<std::string>&) {
      return ::ddprun::Result<rdzv::Listener>(network.bind(at));
    };
    return rdzv::make_etcd_leader(std::move(parts), std::move(options), std::move(events));
  }

  // ---- faults

  void inject() {
    VirtualAgent* agent = current[static_cast<std::size_t>(random.number(0, max_nodes_ - 1))];
    // Prefers the leader.
    if (random.chance(50)) {
      for (VirtualAgent* each : current) {
        if (each != nullptr && each->is_alive() && each->leader().is_here()) agent = each;
      }
    }
    if (agent == nullptr || !agent->is_alive()) return;
    const auto length = random.time(50ms, 5s);
    const auto fault = [&](const char* what) { trace("FAULT agent ", agent->number(), " ", what); };
    switch (random.number(1, 9)) {
      case 1:
      case 2:
        fault("is killed");
        kill(*agent);
        if (!random.chance(60)) return;
        return queue.after(random.time(1ms, 2s),
                           [this, slot = agent->slot()] { start_agent(slot); });
      case 3:
        fault("is paused");
        agent->process()->is_paused = true;
        return end_fault_after(length, [this, agent] { queue.resume(agent->process()); });
      case 4:
        fault("loses its worker");
        if (recovery.is_on() && habits.chance(50)) {
          queue.after(habits.time(0us, 60ms), [agent] { agent->fail_worker(); });
        }
        return agent->fail_worker();
      case 5:
        fault("and all others lose etcd");
        etcd_.set_up(false);
        return end_fault_after(length, [this] { etcd_.set_up(true); });
      case 6:
        fault("is cut off from etcd");
        etcd_.set_cut_off(agent->number(), true);
        return end_fault_after(length,
                               [this, agent] { etcd_.set_cut_off(agent->number(), false); });
      case 7:
        fault("loses its connections");
        return network.reset_of(agent->process());
      case 8:
        fault("is cut off from its leader");
        for (const End towards : {kAgentEnd, kLeaderEnd}) cut(agent->slot(), towards, length);
        return;
      default:
        fault("is told to stop");
        return queue.run_in(agent->process(), [agent] { agent->signal(/*is_preemption=*/false); });
    }
  }

  // ---- what must hold

  std::optional<rdzv::JobRecord> record() const {
    const auto entry = etcd_.find(keys_.job);
    if (entry.create_revision == 0) return std::nullopt;
    return rdzv::read_job_record(entry.value).value();
  }

  void check_put(int who, const rdzv::wire::EtcdPut& put) {
    if (put.key != keys_.job) return;
    trace("etcd <- agent ", who, ": ", put.value);
    const auto leader = etcd_.find(keys_.leader);
    const auto key = rdzv::read_leader_key(leader.value, leader.create_revision);
    require(key && key->address.starts_with(host_of(who) + ":"),
            "the record is written by one who does not lead");
    const auto before = record();
    const auto after = rdzv::read_job_record(put.value).value();
    has_ended_ |= after.outcome.has_value();
    if (!before || before->incarnation != after.incarnation) return;
    require(!before->round || (after.round && *after.round >= *before->round),
            "the record goes back to an earlier round");
    require(after.history.restarts >= before->history.restarts, "the record forgets a restart");
    require(!before->outcome || after.outcome, "the record forgets the outcome");
  }

  void check_revoke(int who, std::int64_t lease) const {
    const VirtualAgent& agent = *agents[static_cast<std::size_t>(who)];
    const bool may_let_go = agent.was_told_to_leave() || agent.outcome() || !agent.is_alive();
    require(may_let_go || etcd_.find(keys_.leader).lease != lease,
            "a claim that has won is given back");
  }

  void workers_start(const VirtualAgent&, const rdzv::RoundStart& start) override {
    const auto known = record();
    require(known && known->round && *known->round >= start.round,
            "a round begins, and is not in etcd");
    require(start.restarts <= max_restarts_, "there were more restarts than allowed");
    Begun& begun = rounds_[{known->incarnation, start.round}];
    const std::string place = start.master_addr + ":" + std::to_string(start.master_port);
    if (begun.place.empty()) {
      begun = {{start.round, start.master_port}, place, start.world_size, start.restarts, {}};
      for (const auto& [key, other] : rounds_) {
        const bool is_earlier = key.first == known->incarnation && key.second < start.round;
        require(!is_earlier || other.restarts <= start.restarts, "a restart was forgotten");
      }
    }
    require(begun.place == place && begun.world_size == start.world_size,
            "a round was begun twice");
    require(begun.ranks.insert(start.node_rank).second, "two nodes have the same rank in a round");
  }

  void leader_says(const VirtualAgent& agent, const rdzv::LeaderEvent& event) override {
    if (const auto* gone = std::get_if<rdzv::LeaderGone>(&event); gone && !gone->was_replaced) {
      without_leader_.insert(&agent);
    }
    const auto* message = std::get_if<rdzv::ToAgent>(&event);
    if (const auto* replace = std::get_if<rdzv::ReplaceWorker>(message)) {
      const auto known = record();
      require(known && known->history.restarts >= replace->restarts,
              "a worker is replaced, and its restart is not in etcd");
    }
    const auto* end = std::get_if<rdzv::JobEnd>(message);
    if (end == nullptr || agent.outcome()) return;
    const bool is_its_own = end->outcome.exit_code == kExitWorkerStuck;
    require(is_its_own || has_ended_, "the job's end is told, and not in etcd");
  }

  void check_end() override {
    const auto known = record();
    for (const auto& agent : agents) {
      const bool is_excused = agent->was_told_to_leave() || without_leader_.contains(agent.get());
      require(!agent->outcome() || is_excused || has_ended_,
              "an agent has ended with what etcd does not have");
    }
    if (!known || !known->outcome || known->outcome->kind != rdzv::JobOutcome::Kind::kSucceeded)
      return;
    const auto last = rounds_.find({known->incarnation, *known->round});
    require(
        last != rounds_.end() && groups[last->second.group].succeeded == last->second.world_size,
        "success, and not of every worker");
  }

  VirtualEtcd etcd_;
  const rdzv::JobKeys keys_;
  int min_nodes_ = 1;
  int max_nodes_ = 2;
  int max_restarts_ = 0;

  std::set<const VirtualAgent*> without_leader_;  // agents that have given up
  std::map<std::pair<std::string, Round>, Begun> rounds_;
  bool has_ended_ = false;  // of some incarnation of the job, as stored in etcd
};

}  // namespace

Result simulate_etcd(std::uint64_t seed, bool with_trace) {
  return Simulation(seed, with_trace).run();
}

}  // namespace ddprun::sim
