#include "tests/sim/etcd_simulation.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/etcd/election_core.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/etcd/round_ledger.h"
#include "rendezvous/round/round_core.h"
#include "tests/sim/etcd_model.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
using rdzv::ElectionCore;

constexpr CoreTime::duration kLease = 2s;
constexpr auto kTimeLimit = 666ms;  // of a question to etcd
constexpr auto kGrace = 300ms;      // for a connection that breaks
constexpr auto kWritePause = 100ms;
constexpr auto kHandOverPause = 300ms;
constexpr auto kCalm = 12s;  // from then on nothing goes wrong any more
constexpr auto kEnd = 150s;  // and then everything is over
constexpr std::uint64_t kEventsMax = 400'000;

struct Agent;

// Between a member's agent and the one who leads; a leader's own agent has none.
struct Link {
  Agent* member = nullptr;
  Agent* leader = nullptr;
  std::uint64_t leaders_term = 0;
  NodeId node{};
  bool is_open = true;
  CoreTime last_arrival[2]{};
};
using LinkPtr = std::shared_ptr<Link>;

struct Leadership {
  rdzv::RoundCore core;
  rdzv::RoundLedger ledger;
  std::map<NodeId, LinkPtr> links;
  std::uint32_t next_node = 1;
  PausableTime time = {};  // stands still while the ledger holds something
};

struct Agent {
  int number = 0;
  int slot = 0;
  ProcessPtr process = std::make_shared<Process>();
  agent::NodeCore group;
  ElectionCore election;
  rdzv::JobLeases leases;
  std::uint64_t term = 0;
  std::uint64_t core_timer = 0;
  std::uint64_t election_timer = 0;
  std::uint64_t stop_timer = 0;
  bool has_begun = false;
  bool wants_to_join = false;
  bool has_joined = false;
  bool is_writing = false;
  bool is_watching = false;
  bool is_cut_off = false;  // from etcd
  bool is_leaving = false;
  bool has_let_go = false;
  std::optional<Leadership> leads;
  LinkPtr link;

  int live_workers = 0;
  std::uint64_t life = 0;  // of its worker
  std::optional<Round> round;
  std::optional<rdzv::LastRound> last_round;  // as its NodeHello says
  std::optional<rdzv::JobOutcome> outcome;
  bool has_given_up = false;

  Agent(const agent::NodeConfig& config, rdzv::ElectionConfig election_config)
      : group(config), election(std::move(election_config)) {}
};

struct Group {  // the workers of a round, one on each node
  std::string place;
  int world_size = 0;
  int restarts = 0;
  std::set<int> ranks;
  std::vector<Agent*> agents;
  int succeeded = 0;
  bool is_broken = false;
};

class Simulation {
 public:
  Simulation(std::uint64_t seed, bool with_trace)
      : trace_(queue_, with_trace), random_(seed), etcd_(queue_), keys_("/ddprun", "job") {
    max_nodes_ = random_.number(2, 5);
    min_nodes_ = random_.number(1, max_nodes_);
    max_restarts_ = random_.number(0, 3);
    training_ = random_.time(500ms, 4s);
    etcd_.on_put = [this](int who, const rdzv::wire::EtcdPut& put) { check_put(who, put); };
  }

  Result run();

 private:
  void start_agent(int slot);
  void inject_faults();
  void inject();
  void vanish(Agent& agent);

  // ---- the agent's group
  void step(Agent& agent, const agent::NodeEvent& event);
  void perform(Agent& agent, const agent::OpenRoundStore& action);
  void perform(Agent&, const agent::CloseStore&) {}
  void perform(Agent& agent, const agent::StartWorkers& action);
  void perform(Agent& agent, const agent::SignalWorker& action);
  void perform(Agent& agent, const agent::AskToLeave& action);
  void perform(Agent& agent, const agent::ArmTimer& action);
  void perform(Agent& agent, const agent::CloseRound& action);
  void perform(Agent& agent, const agent::TellLeader& action);
  void perform(Agent& agent, const agent::Rejoin& action) {
    agent.last_round = action.last_round;
    join(agent);
  }
  void perform(Agent&, const agent::Announce&) {}
  void perform(Agent& agent, const agent::Finish& action);
  void end_worker(Agent& agent, std::uint64_t life, ExitStatus status);
  void tell_group(Agent& agent, const rdzv::ToAgent& message);

  // ---- its election
  void perform(Agent& agent, const ElectionCore::Out& actions);
  void perform(Agent& agent, const rdzv::ReadEtcd&);
  void perform(Agent& agent, const rdzv::Claim& action);
  void perform(Agent& agent, const rdzv::Depose& action);
  void perform(Agent& agent, const rdzv::Follow& action);
  void perform(Agent& agent, const rdzv::Lead& action);
  void perform(Agent& agent, const rdzv::StopLeading&);
  void perform(Agent& agent, const rdzv::LoseLeader&);
  void perform(Agent& agent, const rdzv::EndJob& action);
  void perform(Agent& agent, const rdzv::GiveUp& action);
  void join(Agent& agent);
  void connect(Agent& agent);
  void give_back(Agent& agent, std::int64_t lease);
  void keep_lease(Agent& agent);
  void write(Agent& agent);
  void watch(Agent& agent);
  void lose_sight(Agent& agent);
  void hand_over(Agent& agent);
  void write_last(Agent& agent, std::int64_t job_revision, const rdzv::JobRecord& record,
                  const std::function<void()>& done);
  void exit_when_done(Agent& agent);

  // Asks etcd, at one endpoint after the other, as an EtcdClient does; `answer` gets nothing where
  // none came in time.
  template <typename T>
  void ask(Agent& agent, std::function<T()> question, std::function<void(std::optional<T>)> answer,
           int endpoints_left = 2);
  void txn(Agent& agent, rdzv::wire::EtcdTxn txn,
           std::function<void(std::optional<rdzv::wire::EtcdTxnAnswer>)> answer);

  // ---- the leader
  void lead(Agent& agent,
            const std::function<std::vector<rdzv::ToNode>(rdzv::RoundCore&, CoreTime now)>& step);
  void arm_core_timer(Agent& agent);
  void release(Agent& agent, const std::vector<rdzv::ToNode>& messages);
  void send(const LinkPtr& link, bool to_leader, std::function<void()> message);
  void close(const LinkPtr& link, Agent* closer);
  rdzv::NodeHello hello_of(const Agent& agent) const;

  // ---- what must hold
  std::optional<rdzv::JobRecord> record() const;
  void check_put(int who, const rdzv::wire::EtcdPut& put);
  void check_start(Agent& agent, const rdzv::RoundStart& start);
  void check_end();

  EventQueue queue_;
  Trace trace_;
  Random random_;
  EtcdModel etcd_;
  const rdzv::JobKeys keys_;
  int min_nodes_ = 1;
  int max_nodes_ = 2;
  int max_restarts_ = 0;
  CoreTime::duration training_{};

  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Agent*> current_;
  std::vector<LinkPtr> links_;
  std::map<std::pair<std::string, Round>, Group> groups_;
  std::uint16_t next_port_ = 1000;
  bool has_ended_ = false;  // some life of the job, as etcd had it
};

Result Simulation::run() {
  Result result;
  try {
    current_.resize(static_cast<std::size_t>(max_nodes_));
    for (int slot = 0; slot < max_nodes_; ++slot) {
      queue_.after(random_.time(0us, 300ms), [this, slot] { start_agent(slot); });
    }
    inject_faults();
    while (queue_.now() <= CoreTime(kEnd) && queue_.run_next()) {
      require(queue_.count() < kEventsMax, "the job goes round in circles");
    }
    check_end();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    trace_ << "VIOLATION: " << violation.what() << "\n";
  }
  result.trace = trace_.text();
  result.rounds = static_cast<int>(groups_.size());
  result.events = queue_.count();
  return result;
}

void Simulation::start_agent(int slot) {
  const int number = static_cast<int>(agents_.size());
  const rdzv::ElectionConfig election{"a" + std::to_string(number), 2s, 60s};
  agents_.push_back(std::make_unique<Agent>(agent::NodeConfig{1, 4s, 2s, false}, election));
  Agent& agent = *agents_.back();
  agent.number = number;
  agent.slot = slot;
  current_[static_cast<std::size_t>(slot)] = &agent;
  trace_ << "agent " << number << " starts\n";
  join(agent);
}

// ---- faults

void Simulation::inject_faults() {
  for (int faults = random_.number(0, 5); faults > 0; --faults) {
    queue_.after(random_.time(0us, kCalm - 6s), [this] { inject(); });
  }
}

void Simulation::inject() {
  Agent* agent = current_[static_cast<std::size_t>(random_.number(0, max_nodes_ - 1))];
  // Rather the leader than another one.
  if (random_.chance(50)) {
    for (Agent* each : current_) {
      if (each != nullptr && each->leads) agent = each;
    }
  }
  if (agent == nullptr || !agent->process->is_alive) return;
  const auto length = random_.time(50ms, 5s);
  switch (random_.number(1, 7)) {
    case 1:
    case 2:
      trace_ << "FAULT agent " << agent->number << " is killed\n";
      vanish(*agent);
      if (random_.chance(60)) {
        queue_.after(random_.time(1ms, 2s), [this, slot = agent->slot] { start_agent(slot); });
      }
      return;
    case 3:
      trace_ << "FAULT agent " << agent->number << " is paused\n";
      agent->process->is_paused = true;
      queue_.after(length, [this, agent] {
        trace_ << "FAULT is over: agent " << agent->number << " goes on\n";
        queue_.resume(agent->process);
      });
      return;
    case 4:
      trace_ << "FAULT the worker of agent " << agent->number << " dies\n";
      return end_worker(*agent, agent->life, ExitStatus::exited(3));
    case 5:
      trace_ << "FAULT etcd is away\n";
      etcd_.set_up(false);
      for (Agent* each : current_) {
        if (each != nullptr) lose_sight(*each);
      }
      queue_.after(length, [this] {
        trace_ << "FAULT is over: etcd is back\n";
        etcd_.set_up(true);
      });
      return;
    case 6:
      trace_ << "FAULT agent " << agent->number << " is cut off from etcd\n";
      agent->is_cut_off = true;
      lose_sight(*agent);
      queue_.after(length, [this, agent] {
        trace_ << "FAULT is over: agent " << agent->number << " reaches etcd\n";
        agent->is_cut_off = false;
      });
      return;
    default:
      trace_ << "FAULT agent " << agent->number << " is told to stop\n";
      queue_.run_in(agent->process, [this, agent] { step(*agent, agent::StopSignal{SIGTERM}); });
      return;
  }
}

void Simulation::vanish(Agent& agent) {
  agent.process->is_alive = false;
  agent.live_workers = 0;
  for (auto& [key, group] : groups_) {
    if (agent.round == key.second && std::ranges::count(group.agents, &agent) > 0) {
      group.is_broken = true;
      for (Agent* peer : group.agents) {
        if (peer != &agent && peer->round == key.second) {
          queue_.after(random_.time(5ms, 60ms), [this, peer, life = peer->life] {
            end_worker(*peer, life, ExitStatus::exited(1));
          });
        }
      }
    }
  }
  for (const LinkPtr& link : std::vector(links_)) {
    if (link->member == &agent || link->leader == &agent) close(link, &agent);
  }
}

// ---- the agent's group

void Simulation::step(Agent& agent, const agent::NodeEvent& event) {
  trace_ << "agent " << agent.number << " <- " << name_of(event) << "\n";
  for (const agent::NodeAction& action : agent.group.step(event)) {
    trace_ << "    " << name_of(action) << "\n";
    std::visit([&](const auto& a) { perform(agent, a); }, action);
  }
}

void Simulation::tell_group(Agent& agent, const rdzv::ToAgent& message) {
  queue_.after(0us, agent.process, [this, &agent, message] {
    if (const auto* end = std::get_if<rdzv::JobEnd>(&message); end != nullptr && !agent.outcome) {
      const bool is_its_own = end->outcome.exit_code == kExitWorkerStuck;
      require(is_its_own || has_ended_, "the job's end is told, and not in etcd");
    }
    std::visit([&](const auto& m) { step(agent, m); }, message);
  });
}

void Simulation::perform(Agent& agent, const agent::OpenRoundStore& action) {
  queue_.after(200us, agent.process, [this, &agent, round = action.round, port = ++next_port_] {
    step(agent, agent::StoreResult{round, port, {}});
  });
}

void Simulation::perform(Agent& agent, const agent::StartWorkers& action) {
  const rdzv::RoundStart& start = action.start;
  check_start(agent, start);
  agent.round = start.round;
  agent.live_workers = 1;
  agent.life += 1;
  Group& group = groups_[{record()->incarnation, start.round}];
  group.agents.push_back(&agent);
  if (group.is_broken) {
    queue_.after(50ms, [this, &agent, life = agent.life] {
      end_worker(agent, life, ExitStatus::exited(1));
    });
  }
  if (static_cast<int>(group.agents.size()) < group.world_size) return;
  for (Agent* each : group.agents) {
    queue_.after(training_ + random_.time(0us, 30ms), [this, each, life = each->life, &group] {
      if (!group.is_broken) end_worker(*each, life, ExitStatus::exited(0));
    });
  }
}

void Simulation::end_worker(Agent& agent, std::uint64_t life, ExitStatus status) {
  if (agent.live_workers == 0 || agent.life != life) return;
  agent.live_workers = 0;
  agent::WorkerEnded ended{*agent.round, 0, {}};
  for (auto& [key, group] : groups_) {
    if (key.second != *agent.round || std::ranges::count(group.agents, &agent) == 0) continue;
    if (status.is_success()) {
      group.succeeded += 1;
      continue;
    }
    if (std::exchange(group.is_broken, true)) continue;
    for (Agent* peer : group.agents) {
      queue_.after(random_.time(5ms, 60ms), [this, peer, its_life = peer->life] {
        end_worker(*peer, its_life, ExitStatus::exited(1));
      });
    }
  }
  if (!status.is_success()) {
    ended.failure.emplace();
    ended.failure->status = status;
  }
  queue_.after(100us, agent.process, [this, &agent, ended] { step(agent, ended); });
}

void Simulation::perform(Agent& agent, const agent::SignalWorker& action) {
  if (action.signal == SIGCONT) return;
  queue_.after(random_.time(1ms, 300ms), [this, &agent, life = agent.life, signal = action.signal] {
    end_worker(agent, life, ExitStatus::killed(signal));
  });
}

void Simulation::perform(Agent& agent, const agent::AskToLeave&) {
  queue_.after(
      100ms, [this, &agent, life = agent.life] { end_worker(agent, life, ExitStatus::exited(0)); });
}

void Simulation::perform(Agent& agent, const agent::ArmTimer& action) {
  queue_.after(action.after, agent.process,
               [this, &agent, round = action.round, timer = ++agent.stop_timer] {
                 if (timer == agent.stop_timer) step(agent, agent::TimerExpired{round});
               });
}

void Simulation::perform(Agent& agent, const agent::CloseRound& action) {
  require(agent.live_workers == 0, "a round was closed over live workers");
  agent.stop_timer += 1;
  queue_.after(300us, agent.process,
               [this, &agent, round = action.round] { step(agent, agent::RoundClosed{round}); });
}

void Simulation::perform(Agent& agent, const agent::TellLeader& action) {
  if (std::holds_alternative<rdzv::NodeLeaving>(action.message)) {
    agent.is_leaving = true;
    agent.election.leave();
    queue_.after(kHandOverPause, agent.process, [this, &agent] {
      if (agent.leads) hand_over(agent);
    });
  }
  queue_.after(0us, agent.process, [this, &agent, message = action.message, term = agent.term] {
    if (term != agent.term) return;
    if (agent.leads) {
      lead(agent,
           [&](rdzv::RoundCore& core, CoreTime now) { return core.step(now, NodeId{0}, message); });
    } else if (agent.link) {
      send(agent.link, /*to_leader=*/true, [this, link = agent.link, message] {
        lead(*link->leader, [&](rdzv::RoundCore& core, CoreTime now) {
          return core.step(now, link->node, message);
        });
      });
    }
  });
}

void Simulation::perform(Agent& agent, const agent::Finish& action) {
  require(!agent.outcome, "an agent finished twice");
  require(agent.live_workers == 0, "an agent finished while workers of its own lived");
  agent.outcome = action.outcome;
  exit_when_done(agent);
}

// The leader last, when all the others know.
void Simulation::exit_when_done(Agent& agent) {
  if (!agent.outcome || !agent.process->is_alive) return;
  if (!agent.leads) {
    queue_.after(50ms, agent.process, [this, &agent] {
      trace_ << "agent " << agent.number << " exits with " << agent.outcome->exit_code << "\n";
      agent.process->is_alive = false;
      if (agent.link) close(agent.link, &agent);
    });
    return;
  }
  const rdzv::RoundCore& core = agent.leads->core;
  const bool is_needed = agent.is_leaving ? !core.is_deserted() : !core.was_everyone_told();
  if (!is_needed) return hand_over(agent);
  queue_.after(10ms, agent.process, [this, &agent] { exit_when_done(agent); });
}

// ---- its election

void Simulation::perform(Agent& agent, const ElectionCore::Out& actions) {
  if (agent.has_let_go) return;
  for (const rdzv::ElectionAction& each : actions) {
    std::visit([&](const auto& action) { perform(agent, action); }, each);
  }
  const std::uint64_t timer = ++agent.election_timer;
  if (const auto deadline = agent.election.deadline()) {
    queue_.after(std::max(*deadline - queue_.now(), CoreTime::duration(0)), agent.process,
                 [this, &agent, timer] {
                   if (timer == agent.election_timer) {
                     perform(agent, agent.election.tick(queue_.now()));
                   }
                 });
  }
  write(agent);
}

template <typename T>
void Simulation::ask(Agent& agent, std::function<T()> question,
                     std::function<void(std::optional<T>)> answer, int endpoints_left) {
  const auto has_answered = std::make_shared<bool>(false);
  const auto tell = [this, &agent, question, answer, has_answered,
                     endpoints_left](std::optional<T> what) {
    if (std::exchange(*has_answered, true)) return;
    const bool is_asked_again = !what && endpoints_left > 1;
    if (is_asked_again) return ask<T>(agent, question, answer, endpoints_left - 1);
    answer(std::move(what));
  };
  queue_.after(kTimeLimit, agent.process, [tell] { tell(std::nullopt); });
  if (agent.is_cut_off) return;
  const bool is_lost = random_.chance(2) && queue_.now() < CoreTime(kCalm);
  // A member of etcd that hung does what it was asked when it goes on.
  const bool is_late = random_.chance(2) && queue_.now() < CoreTime(kCalm);
  const auto on_its_way = is_late ? random_.time(5ms, 3s) : random_.time(200us, 5ms);
  queue_.after(on_its_way, [this, &agent, question, tell, is_lost] {
    if (!etcd_.is_up() || agent.is_cut_off) return;
    auto reply = question();  // also of who has died meanwhile
    if (is_lost) return;
    queue_.after(random_.time(200us, 5ms), agent.process,
                 [tell, reply = std::move(reply)] { tell(reply); });
  });
}

void Simulation::txn(Agent& agent, rdzv::wire::EtcdTxn txn,
                     std::function<void(std::optional<rdzv::wire::EtcdTxnAnswer>)> answer) {
  ask<rdzv::wire::EtcdTxnAnswer>(
      agent, [this, txn = std::move(txn), who = agent.number] { return etcd_.apply(who, txn); },
      std::move(answer));
}

void Simulation::perform(Agent& agent, const rdzv::ReadEtcd&) {
  txn(agent, read_txn(keys_), [this, &agent](const auto& answer) {
    const CoreTime now = queue_.now();
    if (!answer) return perform(agent, agent.election.failed(now, "no answer", false));
    watch(agent);
    // What has changed since comes as events, which were missed: so it is read again.
    perform(agent, agent.election.view(now, rdzv::view_of(keys_, *answer).value()));
  });
}

void Simulation::perform(Agent& agent, const rdzv::Claim& action) {
  ask<std::int64_t>(
      agent, [this] { return etcd_.grant(kLease); },
      [this, &agent, action](std::optional<std::int64_t> lease) {
        const CoreTime now = queue_.now();
        if (!lease) return perform(agent, agent.election.failed(now, "no answer", false));
        agent.leases = {*lease, 0};  // the record's own ends long after all this
        const std::string address = "a" + std::to_string(agent.number) + ":1";
        txn(agent, claim_txn(keys_, action, address, agent.leases),
            [this, &agent, action](const auto& answer) {
              const CoreTime then = queue_.now();
              if (!answer) return perform(agent, agent.election.failed(then, "no answer", false));
              if (answer->has_succeeded) {
                return perform(agent, agent.election.claimed(then, answer->revision));
              }
              const auto own = rdzv::leases_of_won_claim(keys_, action, *answer);
              if (!own || own->leader != agent.leases.leader) give_back(agent, agent.leases.leader);
              if (own) agent.leases = *own;
              perform(agent,
                      agent.election.claim_failed(then, rdzv::view_of(keys_, *answer).value()));
            });
      });
}

void Simulation::give_back(Agent& agent, std::int64_t lease) {
  ask<bool>(
      agent,
      [this, lease] {
        require(etcd_.find(keys_.leader).lease != lease, "a claim that has won is given back");
        return etcd_.revoke(lease), true;
      },
      [](const auto&) {});
}

void Simulation::perform(Agent& agent, const rdzv::Depose& action) {
  txn(agent, depose_txn(keys_, action.revision), [](const auto&) {});
}

void Simulation::watch(Agent& agent) {
  if (std::exchange(agent.is_watching, true)) return;
  etcd_.watch(agent.number, keys_.leader, [this, &agent](const rdzv::wire::EtcdEvent& event) {
    if (!agent.is_watching) return;
    queue_.after(random_.time(200us, 5ms), agent.process, [this, &agent, event] {
      const CoreTime now = queue_.now();
      if (event.is_delete) {
        return perform(agent, agent.election.leader_deleted(now, event.entry.mod_revision));
      }
      const auto key = rdzv::read_leader_key(event.entry.value, event.entry.create_revision);
      perform(agent, agent.election.leader_put(now, key.value()));
    });
  });
  // From the read's revision on, as the real watch does.
  queue_.after(10ms, agent.process,
               [this, &agent] { perform(agent, agent.election.watch_ended(queue_.now())); });
}

void Simulation::lose_sight(Agent& agent) {
  if (!std::exchange(agent.is_watching, false)) return;
  queue_.after(1ms, agent.process,
               [this, &agent] { perform(agent, agent.election.watch_ended(queue_.now())); });
}

void Simulation::perform(Agent& agent, const rdzv::Lead& action) {
  trace_ << "agent " << agent.number << " leads\n";
  agent.term += 1;
  rdzv::RoundConfig config;
  config.min_nodes = min_nodes_;
  config.max_nodes = max_nodes_;
  config.restarts.max_restarts = max_restarts_;
  config.own_node.reset();
  config.join_timeout = 20s;
  config.last_call_timeout = 1s;
  rdzv::Resumption resumption = rdzv::resumption_of(action);
  resumption.now = queue_.now();
  agent.leads.emplace(
      Leadership{rdzv::RoundCore(config, resumption), rdzv::RoundLedger(action.record), {}, 1});
  agent.is_writing = false;
  keep_lease(agent);
  if (agent.wants_to_join) connect(agent);
}

void Simulation::keep_lease(Agent& agent) {
  queue_.after(kLease / 3, agent.process, [this, &agent, term = agent.term] {
    if (!agent.leads || term != agent.term) return;
    keep_lease(agent);
    ask<bool>(
        agent, [this, lease = agent.leases.leader] { return etcd_.keep_alive(lease); },
        [this, &agent, lease = agent.leases.leader](std::optional<bool> is_kept) {
          if (is_kept && !*is_kept && lease == agent.leases.leader) {
            perform(agent, agent.election.leadership_uncertain());
          }
        });
  });
}

void Simulation::perform(Agent& agent, const rdzv::StopLeading&) {
  trace_ << "agent " << agent.number << " leads no more\n";
  agent.term += 1;
  for (const auto& [node, link] : std::map(agent.leads->links)) close(link, &agent);
  agent.leads.reset();
}

void Simulation::perform(Agent& agent, const rdzv::Follow&) {
  agent.term += 1;
  if (agent.wants_to_join) connect(agent);
}

void Simulation::perform(Agent& agent, const rdzv::LoseLeader&) {
  agent.term += 1;
  if (agent.link) close(std::exchange(agent.link, nullptr), &agent);
  if (std::exchange(agent.has_joined, false) && !agent.is_leaving) {
    queue_.after(0us, agent.process, [this, &agent] { step(agent, agent::LeaderReplaced{}); });
  }
  exit_when_done(agent);
}

void Simulation::perform(Agent& agent, const rdzv::EndJob& action) {
  agent.has_let_go = true;
  tell_group(agent, rdzv::JobEnd{action.outcome});
}

void Simulation::perform(Agent& agent, const rdzv::GiveUp& action) {
  agent.has_let_go = agent.has_given_up = true;
  agent.term += 1;
  queue_.after(0us, agent.process, [this, &agent, sentence = action.sentence] {
    step(agent, agent::LeaderLost{sentence, true});
  });
}

rdzv::NodeHello Simulation::hello_of(const Agent& agent) const {
  rdzv::NodeHello hello;
  hello.host = "h" + std::to_string(agent.slot);
  hello.address = hello.host;
  hello.min_nodes = min_nodes_;
  hello.max_nodes = max_nodes_;
  hello.max_restarts = max_restarts_;
  hello.last_round = agent.last_round;
  return hello;
}

void Simulation::join(Agent& agent) {
  agent.wants_to_join = agent.has_joined = true;
  if (!std::exchange(agent.has_begun, true)) {
    return perform(agent, agent.election.begin(queue_.now()));
  }
  if (agent.election.leader()) connect(agent);
}

void Simulation::connect(Agent& agent) {
  agent.wants_to_join = false;
  if (agent.leads) {
    const rdzv::ToLeader hello = hello_of(agent);
    lead(agent,
         [&](rdzv::RoundCore& core, CoreTime now) { return core.step(now, NodeId{0}, hello); });
    return;
  }
  const std::string& address = agent.election.leader()->address;
  Agent* leader = agents_[static_cast<std::size_t>(std::stoi(address.substr(1)))].get();
  if (!leader->leads || !leader->process->is_alive) {
    // Tries again and again, until etcd has another leader.
    queue_.after(20ms, agent.process, [this, &agent, term = agent.term] {
      if (term == agent.term && !agent.link) connect(agent);
    });
    return;
  }
  if (agent.link) close(std::exchange(agent.link, nullptr), &agent);
  const auto link = std::make_shared<Link>();
  link->member = &agent;
  link->leader = leader;
  link->leaders_term = leader->term;
  link->node = NodeId{leader->leads->next_node++};
  leader->leads->links[link->node] = link;
  agent.link = link;
  links_.push_back(link);
  send(link, /*to_leader=*/true, [this, link] {
    const rdzv::ToLeader hello = hello_of(*link->member);
    lead(*link->leader,
         [&](rdzv::RoundCore& core, CoreTime now) { return core.step(now, link->node, hello); });
  });
}

void Simulation::write(Agent& agent) {
  if (!agent.leads || agent.is_writing || !agent.election.leads() || agent.is_leaving) return;
  const rdzv::JobRecord* due = agent.leads->ledger.due();
  if (due == nullptr) return;
  agent.is_writing = true;
  const std::int64_t leader = agent.election.leader()->revision;
  txn(agent, write_txn(keys_, leader, agent.election.job_revision(), *due, agent.leases),
      [this, &agent, leader, record = *due, term = agent.term](const auto& answer) {
        if (term != agent.term || !agent.leads) return;
        agent.is_writing = false;
        if (!answer) {
          queue_.after(kWritePause, agent.process, [this, &agent] { write(agent); });
          return;
        }
        const rdzv::RecordWrite result = rdzv::result_of_write(leader, record, *answer);
        if (result.kind == rdzv::RecordWrite::Kind::kFenced) {
          perform(agent, agent.election.leadership_uncertain());
        } else if (result.kind == rdzv::RecordWrite::Kind::kOvertaken) {
          agent.election.overtaken(result.job_revision);
          write(agent);
        } else {
          const auto messages = agent.leads->ledger.written();
          agent.election.written(result.job_revision, agent.leads->ledger.record());
          release(agent, messages);
          if (!agent.leads) return;
          write(agent);
          arm_core_timer(agent);
        }
      });
}

void Simulation::hand_over(Agent& agent) {
  if (std::exchange(agent.has_let_go, true)) return;
  rdzv::JobRecord last = agent.leads->ledger.newest();
  const bool is_over = agent.is_leaving && agent.leads->core.is_deserted() && !last.outcome;
  const auto revoke = [this, &agent] {
    ask<bool>(
        agent, [this, lease = agent.leases.leader] { return etcd_.revoke(lease), true; },
        [this, &agent](const auto&) {
          perform(agent, rdzv::StopLeading{});
          exit_when_done(agent);
        });
  };
  if (!is_over) return revoke();
  last.outcome.emplace();
  last.outcome->kind = rdzv::JobOutcome::Kind::kStopped;
  last.outcome->exit_code = 128 + SIGTERM;
  last.outcome->stop_signal = SIGTERM;
  write_last(agent, agent.election.job_revision(), last, revoke);
}

void Simulation::write_last(Agent& agent, std::int64_t job_revision, const rdzv::JobRecord& record,
                            const std::function<void()>& done) {
  const std::int64_t leader = agent.election.leader()->revision;
  txn(agent, write_txn(keys_, leader, job_revision, record, agent.leases),
      [this, &agent, leader, record, done](const auto& answer) {
        if (answer) {
          const rdzv::RecordWrite write = rdzv::result_of_write(leader, record, *answer);
          if (write.kind == rdzv::RecordWrite::Kind::kOvertaken) {
            return write_last(agent, write.job_revision, record, done);
          }
        }
        done();
      });
}

// ---- the leader

void Simulation::lead(
    Agent& agent,
    const std::function<std::vector<rdzv::ToNode>(rdzv::RoundCore&, CoreTime now)>& step) {
  if (!agent.leads) return;
  auto messages = step(agent.leads->core, agent.leads->time.at(queue_.now()));
  release(agent, agent.leads->ledger.pass(agent.leads->core, std::move(messages)));
  if (!agent.leads) return;
  write(agent);
  arm_core_timer(agent);
}

void Simulation::arm_core_timer(Agent& agent) {
  const std::uint64_t timer = ++agent.core_timer;
  rdzv::RoundLedger& ledger = agent.leads->ledger;
  PausableTime& time = agent.leads->time;
  time.set_paused(ledger.due() != nullptr, queue_.now());
  if (time.is_paused()) return;
  if (const auto deadline = agent.leads->core.deadline()) {
    queue_.after(std::max(time.real(*deadline) - queue_.now(), CoreTime::duration(0)),
                 agent.process, [this, &agent, timer] {
                   if (timer != agent.core_timer) return;
                   lead(agent, [](rdzv::RoundCore& core, CoreTime now) { return core.tick(now); });
                 });
  }
}

void Simulation::release(Agent& agent, const std::vector<rdzv::ToNode>& messages) {
  for (const rdzv::ToNode& each : messages) {
    trace_ << "    leader " << agent.number << " to node " << number(each.to) << " "
           << name_of(each.message) << "\n";
    const auto saw = [this, message = each.message](Agent& member) {
      member.election.heard();
      if (const auto* start = std::get_if<rdzv::RoundStart>(&message)) member.election.saw(*start);
      if (std::holds_alternative<rdzv::JobEnd>(message)) member.election.leave();
      tell_group(member, message);
    };
    if (each.to == NodeId{0}) {
      saw(agent);
      continue;
    }
    const auto found = agent.leads->links.find(each.to);
    if (found == agent.leads->links.end()) continue;
    send(found->second, /*to_leader=*/false, [saw, link = found->second] {
      if (link->member->link == link) saw(*link->member);
    });
  }
}

void Simulation::send(const LinkPtr& link, bool to_leader, std::function<void()> message) {
  CoreTime& last = link->last_arrival[to_leader ? 1 : 0];
  last = std::max(last + 1us, queue_.now() + random_.time(50us, 5ms));
  Agent& to = to_leader ? *link->leader : *link->member;
  queue_.after(last - queue_.now(), to.process, [link, to_leader, message = std::move(message)] {
    const bool is_heard = !to_leader || link->leader->term == link->leaders_term;
    if (link->is_open && is_heard) message();
  });
}

// The other end hears of it.
void Simulation::close(const LinkPtr& link, Agent* closer) {
  if (!std::exchange(link->is_open, false)) return;
  std::erase(links_, link);
  if (closer == link->leader) {
    queue_.after(kGrace, link->member->process, [this, link] {
      Agent& member = *link->member;
      if (member.link != link) return;
      member.link.reset();
      const Agent& leader = *link->leader;
      const bool is_refused = !leader.process->is_alive || !leader.leads;
      perform(member, member.election.connection_gone(queue_.now(), is_refused));
    });
    return;
  }
  queue_.after(1ms, link->leader->process, [this, link] {
    if (link->leader->term != link->leaders_term) return;
    lead(*link->leader, [&](rdzv::RoundCore& core, CoreTime now) {
      return core.step(now, link->node, rdzv::NodeDisconnected{});
    });
  });
}

// ---- what must hold

std::optional<rdzv::JobRecord> Simulation::record() const {
  const auto entry = etcd_.find(keys_.job);
  if (entry.create_revision == 0) return std::nullopt;
  return rdzv::read_job_record(entry.value).value();
}

void Simulation::check_put(int who, const rdzv::wire::EtcdPut& put) {
  if (put.key != keys_.job) return;
  trace_ << "etcd <- agent " << who << ": " << put.value << "\n";
  const auto leader = etcd_.find(keys_.leader);
  const auto key = rdzv::read_leader_key(leader.value, leader.create_revision);
  require(key && key->address == "a" + std::to_string(who) + ":1",
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

void Simulation::check_start(Agent& agent, const rdzv::RoundStart& start) {
  require(agent.live_workers == 0, "an agent started workers while others of its own lived");
  require(!agent.round || *agent.round < start.round, "an agent's rounds do not go up");
  const auto known = record();
  require(known && known->round && *known->round >= start.round,
          "a round begins, and is not in etcd");
  require(start.restarts <= max_restarts_, "there were more restarts than allowed");
  Group& group = groups_[{known->incarnation, start.round}];
  const std::string place = start.master_addr + ":" + std::to_string(start.master_port);
  if (group.place.empty()) {
    group.place = place;
    group.world_size = start.world_size;
    group.restarts = start.restarts;
    for (const auto& [other, its] : groups_) {
      if (other.first != known->incarnation || its.place.empty()) continue;
      const bool is_earlier = other.second < start.round;
      require(!is_earlier || its.restarts <= start.restarts, "a restart was forgotten");
    }
  }
  require(group.place == place && group.world_size == start.world_size, "a round was begun twice");
  require(group.ranks.insert(start.node_rank).second, "two nodes have the same rank in a round");
}

void Simulation::check_end() {
  trace_ << "the end is checked\n";
  const auto known = record();
  for (const auto& agent : agents_) {
    require(!agent->process->is_alive, "an agent has not ended long after all faults");
    require(agent->live_workers == 0, "workers were left behind");
    if (!agent->outcome || agent->is_leaving || agent->has_given_up) continue;
    require(has_ended_, "an agent has ended with what etcd does not have");
  }
  if (!known || !known->outcome || known->outcome->kind != rdzv::JobOutcome::Kind::kSucceeded)
    return;
  const auto last = groups_.find({known->incarnation, *known->round});
  require(last != groups_.end() && last->second.succeeded == last->second.world_size,
          "success, and not of every worker");
}

}  // namespace

Result simulate_etcd(std::uint64_t seed, bool with_trace) {
  return Simulation(seed, with_trace).run();
}

}  // namespace ddprun::sim
