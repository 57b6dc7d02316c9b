#include "tests/sim/simulation.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_core.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/network.h"
#include "tests/sim/random.h"
#include "tests/sim/trace.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
using Kind = Fault::Kind;

// Until the job has ended, from the moment when nothing goes wrong any more: silence is noticed (8
// s), or that an agent is stuck (16 s), workers are stopped (6 s), others are waited for (15 s), and what was started runs (6 s), for
// some of it more than once.
constexpr auto kCalmLimit = 110s;
constexpr std::uint64_t kEventsPerNodeMax = 20'000;
constexpr auto kShutdownTimeout = 4s;
constexpr auto kKillTimeout = 2s;
constexpr auto kConnectPatience = 200ms;
constexpr auto kConnectInterval = 50ms;
constexpr auto kFlushPatience = 500ms;

struct Worker {
  bool is_alive = false;
  int leader = 0;  // that began its round
  Round round{};
  std::uint64_t life = 0;  // counts starts: what was meant for an earlier one is dropped
  bool ignores_term = false;
};

// A round of one leader's process: the next one may begin with the same numbers.
struct RoundOf {
  int leader = 0;
  Round round{};
  auto operator<=>(const RoundOf&) const = default;
};

struct Agent {
  int slot = 0;
  int number = 0;  // of all that were ever started, for the trace
  ProcessPtr process;
  bool hosts_leader = false;
  agent::NodeCore core;
  std::vector<Worker> workers;
  std::shared_ptr<Invariants::Facts> facts = std::make_shared<Invariants::Facts>();

  // the connection to a leader elsewhere
  std::uint64_t session_number = 0;
  rdzv::ResendQueue<rdzv::ToLeader> session;
  rdzv::LeaderLiveness leader;
  ConnectionPtr connection;
  bool is_welcome = false;   // over this connection
  bool was_welcome = false;  // in this session
  bool was_ever_welcome = false;
  int leader_number = 0;      // of the leader of this session
  bool is_over = false;       // the leader has said its last word; join() begins another session
  bool has_given_up = false;  // the leader is lost, or will not have us
  CoreTime joined;

  std::optional<rdzv::LastRound> last_round;  // as its NodeHello says
  std::optional<rdzv::RoundStart> started;    // the last round here
  std::optional<rdzv::JobOutcome> outcome;
  bool is_leaving_leader = false;  // that step of its end is begun
  agent::TimerId timer{};          // the last that was armed
  std::optional<agent::EndStep> end_step;
  bool may_take_next_step = true;  // the present one is taken, its time is over, or a signal came
  bool was_told_to_leave = false;
  bool is_stuck = false;
  bool was_stuck = false;
  std::vector<agent::NodeEvent> unseen;  // while it was stuck
  std::optional<CoreTime> died;

  Agent(int slot_, agent::NodeConfig config, rdzv::KeepAlive keep_alive)
      : slot(slot_), core(config), leader(keep_alive) {}
};

// The workers of one round, who meet, train together, and fail together.
struct Group {
  int world_size = 0;
  bool is_broken = false;
  std::vector<std::pair<Agent*, int>> workers;
};

struct Peer {  // a node, as the leader's shell knows it
  rdzv::ResendQueue<rdzv::ToAgent> session;
  std::uint64_t session_number = 0;
  ConnectionPtr connection;  // none: it is broken
  Agent* agent = nullptr;    // for what the simulation wants to know; the leader does not look
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, bool with_trace)
      : schedule_(schedule),
        trace_(queue_, with_trace),
        random_(schedule.seed + 1),
        network_(queue_, random_, schedule.nodes.size(), schedule.delay_max),
        invariants_(schedule),
        core_(schedule.config),
        liveness_(keep_alive_) {}

  Result run();

 private:
  // ---- agents
  void start_agent(int slot);
  void step(Agent& agent, const agent::NodeEvent& event);
  static bool ends_step(const Agent& agent, const agent::NodeEvent& event);
  void perform(Agent& agent, const agent::OpenRoundStore& action);
  void perform(Agent& agent, const agent::CloseStore& action);
  void perform(Agent& agent, const agent::StartWorkers& action);
  void perform(Agent& agent, const agent::SignalWorker& action);
  void perform(Agent& agent, const agent::AskToLeave& action);
  void perform(Agent& agent, const agent::ArmTimer& action);
  void perform(Agent&, const agent::GraceOver&) {}
  void perform(Agent& agent, const agent::TakeStacks& action);
  void perform(Agent& agent, const agent::CloseRound& action);
  void perform(Agent& agent, const agent::TellLeader& action);
  void perform(Agent& agent, const agent::Join& action);
  void perform(Agent&, const agent::Announce&) {}
  void perform(Agent& agent, const agent::Finish& action);
  void perform(Agent& agent, const agent::TakeStep& action);
  void perform(Agent& agent, const agent::Exit& action);
  void leave_leader(Agent& agent);
  void leave_now(Agent& agent);
  rdzv::NodeHello hello_of(const Agent& agent) const;
  void join(Agent& agent);
  void connect(Agent& agent);
  void lose_connection(Agent& agent, const ConnectionPtr& connection);
  void keep_alive(Agent& agent);
  void end_session(Agent& agent);
  void give_up_leader(Agent& agent, const std::string& why);
  void transmit(Agent& agent, const rdzv::Numbered<rdzv::ToLeader>& numbered);
  void receive(Agent& agent, const ConnectionPtr& connection, std::uint64_t confirmed);
  void leave_when_flushed(Agent& agent);
  void exit(Agent& agent);
  void vanish(Agent& agent);

  // ---- workers
  void end_worker_after(CoreTime::duration delay, Agent& agent, int local_rank, ExitStatus status);
  void end_worker(Agent& agent, int local_rank, std::uint64_t life, ExitStatus status,
                  bool by_itself = false);
  void break_group(RoundOf round);
  void break_groups_of(const Agent& agent);

  // ---- the leader
  template <typename Step>
  void lead(NodeId from, const rdzv::ToLeader* message, Step step);
  void tell(NodeId to, const rdzv::ToAgent& message);
  void transmit(const Peer& peer, const rdzv::Numbered<rdzv::ToAgent>& numbered);
  void accept(const ConnectionPtr& connection, Agent& agent, std::uint64_t session,
              std::uint64_t received, bool is_new);
  void welcome(NodeId id, std::uint64_t received);
  void hear(const ConnectionPtr& connection, const rdzv::Numbered<rdzv::ToLeader>& numbered,
            std::uint64_t confirmed);
  void hear_heartbeat(const ConnectionPtr& connection, std::uint64_t confirmed);
  void lose_peer(NodeId id, const ConnectionPtr& connection);
  void keep_alive_all();
  void check_that_the_dead_are_noticed() const;
  void arm_leader();
  void end_leader_when_done();
  void exit_leader();
  void kill_leader(std::optional<CoreTime::duration> comes_back_after);
  void start_leader();

  void inject(const Fault& fault);
  bool may_lose_leader(const Agent& agent) const;
  bool may_be_late(const Agent& agent) const;
  void check_end();

  const Schedule& schedule_;
  EventQueue queue_;
  Trace trace_;
  Random random_;
  Network network_;
  Invariants invariants_;
  Invariants::Views views_;
  rdzv::KeepAlive keep_alive_;

  ProcessPtr leader_process_ = std::make_shared<Process>();
  int leader_number_ = 0;  // counts the processes that lead, one after another
  rdzv::RoundCore core_;
  rdzv::Liveness liveness_;
  std::map<NodeId, Peer> peers_;
  std::map<std::uint64_t, NodeId> sessions_;
  std::uint32_t next_node_ = 1;  // 0 is the leader's own
  std::uint64_t leader_timer_ = 0;
  bool leader_was_killed_ = false;
  bool is_leader_gone_ = false;  // for good
  bool is_silence_ = false;      // what the leader is being told
  bool was_end_near_ = false;    // when it was killed: some knew of the end
  CoreTime leader_resumed_{};

  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Agent*> current_;  // by slot
  std::map<RoundOf, Group> groups_;
  std::uint16_t next_port_ = 1000;
};

Result Simulation::run() {
  Result result;
  try {
    current_.resize(schedule_.nodes.size());
    for (std::size_t slot = 0; slot < schedule_.nodes.size(); ++slot) {
      queue_.at(schedule_.nodes[slot].starts,
                [this, slot] { start_agent(static_cast<int>(slot)); });
    }
    for (const Fault& fault : schedule_.faults) {
      queue_.at(fault.at, [this, &fault] { inject(fault); });
    }
    queue_.after(0us, [this] { keep_alive_all(); });
    const CoreTime limit = schedule_.calm + kCalmLimit;
    const std::uint64_t events_max = kEventsPerNodeMax * (schedule_.nodes.size() + 1);
    while (queue_.run_next() && queue_.now() <= limit) {
      require(queue_.count() < events_max, "the job goes round in circles");
    }
    check_end();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    trace_ << "VIOLATION: " << violation.what() << "\n";
  }
  result.trace = trace_.text();
  result.rounds = invariants_.rounds();
  result.events = queue_.count();
  return result;
}

// ---- agents

void Simulation::start_agent(int slot) {
  const Node& node = schedule_.nodes[static_cast<std::size_t>(slot)];
  const bool hosts_leader = slot == 0 && !schedule_.leader_is_alone;
  agent::NodeConfig config{node.workers, kShutdownTimeout, kKillTimeout, hosts_leader};
  config.leader_leave_timeout = keep_alive_.timeout() + 2 * keep_alive_.interval;
  agents_.push_back(std::make_unique<Agent>(slot, config, keep_alive_));
  Agent& agent = *agents_.back();
  current_[static_cast<std::size_t>(slot)] = &agent;
  agent.number = static_cast<int>(agents_.size()) - 1;
  agent.hosts_leader = hosts_leader;
  agent.process = hosts_leader ? leader_process_ : std::make_shared<Process>();
  agent.workers.resize(static_cast<std::size_t>(node.workers));
  agent.joined = queue_.now();
  trace_ << "agent " << agent.number << " (slot " << slot << ") starts\n";
  if (hosts_leader) {
    agent.leader_number = leader_number_;
    peers_[NodeId{0}].agent = &agent;
    views_[NodeId{0}] = {hello_of(agent), true, agent.facts};
    perform(agent, agent::TellLeader{hello_of(agent)});
  } else {
    join(agent);
    keep_alive(agent);
  }
}

rdzv::NodeHello Simulation::hello_of(const Agent& agent) const {
  const Node& node = schedule_.nodes[static_cast<std::size_t>(agent.slot)];
  rdzv::NodeHello hello;
  hello.local_world_size = node.workers;
  hello.role = node.role;
  hello.host = node.host;
  hello.address = node.host;
  hello.node_rank = node.node_rank;
  hello.session = agent.session_number;
  hello.min_nodes = schedule_.config.min_nodes;
  hello.max_nodes = schedule_.config.max_nodes;
  hello.max_restarts = schedule_.config.restarts.max_restarts;
  hello.shutdown_timeout = kShutdownTimeout;
  hello.last_round = agent.last_round;
  return hello;
}

void Simulation::step(Agent& agent, const agent::NodeEvent& event) {
  if (agent.is_stuck) return agent.unseen.push_back(event);
  trace_ << "agent " << agent.number << " <- " << name_of(event) << "\n";
  if (ends_step(agent, event)) agent.may_take_next_step = true;
  for (const agent::NodeAction& action : agent.core.step(event)) {
    trace_ << "    " << name_of(action) << "\n";
    std::visit([&](const auto& a) { perform(agent, a); }, action);
  }
}

bool Simulation::ends_step(const Agent& agent, const agent::NodeEvent& event) {
  const auto* taken = std::get_if<agent::StepTaken>(&event);
  const auto* expired = std::get_if<agent::TimerExpired>(&event);
  return (taken != nullptr && taken->step == agent.end_step) ||
         (expired != nullptr && expired->timer == agent.timer) ||
         std::holds_alternative<agent::StopSignal>(event) ||
         std::holds_alternative<agent::PreemptSignal>(event);
}

void Simulation::perform(Agent& agent, const agent::OpenRoundStore& action) {
  agent.facts->store = action.round;
  agent.facts->store_port = ++next_port_;
  queue_.after(random_.time(200us, 5ms), agent.process,
               [this, &agent, round = action.round, port = next_port_] {
                 const bool is_open =
                     agent.facts->store == round && agent.facts->store_port == port;
                 if (is_open) step(agent, agent::StoreResult{round, port, {}});
               });
}

void Simulation::perform(Agent& agent, const agent::CloseStore& action) {
  require(agent.facts->store == action.round, "an agent closed another store than it has");
  agent.facts->store.reset();
}

void Simulation::perform(Agent& agent, const agent::StartWorkers& action) {
  const rdzv::RoundStart& start = action.start;
  for (const auto& [id, peer] : peers_) {
    if (peer.agent == &agent && peer.session_number == agent.session_number) {
      invariants_.workers_started(id, start, agent.facts->live_workers);
    }
  }
  require(agent.facts->live_workers == 0, "an agent started workers while others of its own lived");
  require(!agent.started ||
              (agent.started->round < start.round && agent.started->restarts <= start.restarts),
          "an agent's rounds do not go up, or a restart was forgotten");
  agent.started = start;
  const RoundOf round{agent.leader_number, start.round};
  Group& group = groups_[round];
  group.world_size = start.world_size;
  for (int local_rank = 0; local_rank < static_cast<int>(agent.workers.size()); ++local_rank) {
    Worker& worker = agent.workers[static_cast<std::size_t>(local_rank)];
    worker.is_alive = true;
    worker.leader = agent.leader_number;
    worker.round = start.round;
    worker.life += 1;
    worker.ignores_term = random_.chance(schedule_.ignores_term_percent);
    agent.facts->live_workers += 1;
    group.workers.emplace_back(&agent, local_rank);
  }
  if (group.is_broken) return break_group(round);
  if (static_cast<int>(group.workers.size()) < group.world_size) return;
  for (const auto& [peer, local_rank] : group.workers) {
    const auto life = peer->workers[static_cast<std::size_t>(local_rank)].life;
    queue_.after(schedule_.training + random_.time(0us, 30ms),
                 [this, peer = peer, local_rank = local_rank, life, round] {
                   if (groups_[round].is_broken) return;
                   end_worker(*peer, local_rank, life, ExitStatus::exited(0));
                 });
  }
}

void Simulation::perform(Agent& agent, const agent::SignalWorker& action) {
  const Worker& worker = agent.workers[static_cast<std::size_t>(action.local_rank)];
  if (action.signal == SIGCONT) return;
  if (action.signal == SIGKILL) {
    end_worker_after(500us, agent, action.local_rank, ExitStatus::killed(SIGKILL));
  } else if (!worker.ignores_term) {
    end_worker_after(random_.time(schedule_.stop_min, schedule_.stop_max), agent, action.local_rank,
                     ExitStatus::killed(action.signal));
  }
}

void Simulation::perform(Agent& agent, const agent::AskToLeave& action) {
  const auto delay = random_.time(10ms, 800ms);
  end_worker_after(delay, agent, action.local_rank, ExitStatus::exited(random_.chance(50) ? 0 : 1));
}

void Simulation::end_worker_after(CoreTime::duration delay, Agent& agent, int local_rank,
                                  ExitStatus status) {
  const Worker& worker = agent.workers[static_cast<std::size_t>(local_rank)];
  if (!worker.is_alive) return;
  queue_.after(delay, [this, &agent, local_rank, life = worker.life, status] {
    end_worker(agent, local_rank, life, status);
  });
}

void Simulation::perform(Agent& agent, const agent::ArmTimer& action) {
  agent.timer = action.timer;
  queue_.after(action.after, agent.process,
               [this, &agent, timer = action.timer] { step(agent, agent::TimerExpired{timer}); });
}

// A debugger may never end.
void Simulation::perform(Agent& agent, const agent::TakeStacks& action) {
  if (random_.chance(20)) return;
  queue_.after(random_.time(1ms, 6s), agent.process,
               [this, &agent, round = action.round] { step(agent, agent::StacksTaken{round}); });
}

void Simulation::perform(Agent& agent, const agent::CloseRound& action) {
  require(agent.facts->live_workers == 0, "a round was closed over live workers");
  agent.facts->store.reset();
  queue_.after(300us, agent.process,
               [this, &agent, round = action.round] { step(agent, agent::RoundClosed{round}); });
}

void Simulation::perform(Agent& agent, const agent::TellLeader& action) {
  if (agent.hosts_leader) {
    queue_.after(0us, leader_process_, [this, message = action.message] {
      lead(NodeId{0}, &message, [&] { return core_.step(queue_.now(), NodeId{0}, message); });
    });
  } else if (!agent.is_over && !agent.has_given_up) {
    transmit(agent, agent.session.send(action.message));
  }
}

void Simulation::perform(Agent& agent, const agent::Join& action) {
  agent.last_round = action.last_round;
  join(agent);
}

void Simulation::perform(Agent& agent, const agent::Finish& action) {
  require(!agent.outcome, "an agent finished twice");
  require(agent.facts->live_workers == 0, "an agent finished while workers of its own lived");
  agent.outcome = action.outcome;
  agent.facts->is_gone = true;
}

// Readers, file servers and other nodes may take any time, and longer than they have.
void Simulation::perform(Agent& agent, const agent::TakeStep& action) {
  require(std::exchange(agent.may_take_next_step, false),
          "a step of the end was begun before the one before it was taken");
  agent.end_step = action.step;
  if (action.step == agent::EndStep::kLeader) return leave_leader(agent);
  const bool may_hang =
      action.step != agent::EndStep::kOutput && action.step != agent::EndStep::kConsole;
  const auto delay =
      may_hang && random_.chance(5) ? random_.time(400ms, 8s) : random_.time(0us, 20ms);
  queue_.after(delay, agent.process,
               [this, &agent, step = action.step] { this->step(agent, agent::StepTaken{step}); });
}

void Simulation::leave_leader(Agent& agent) {
  agent.is_leaving_leader = true;
  if (agent.hosts_leader) return end_leader_when_done();
  leave_when_flushed(agent);
  queue_.after(kFlushPatience, agent.process, [this, &agent] { leave_now(agent); });
}

void Simulation::leave_now(Agent& agent) {
  if (!std::exchange(agent.is_leaving_leader, false)) return;
  queue_.after(0us, agent.process,
               [this, &agent] { step(agent, agent::StepTaken{agent::EndStep::kLeader}); });
}

void Simulation::perform(Agent& agent, const agent::Exit&) {
  require(agent.may_take_next_step, "an agent exits before the last step of its end was taken");
  exit(agent);
}

// ---- an agent's connection

void Simulation::join(Agent& agent) {
  if (agent.connection) network_.close(std::exchange(agent.connection, {}), kAgentEnd);
  agent.session_number = random_.next();
  agent.session = {};
  agent.session.send(hello_of(agent));
  agent.is_welcome = agent.was_welcome = agent.is_over = agent.has_given_up = false;
  agent.joined = queue_.now();
  connect(agent);
}

void Simulation::connect(Agent& agent) {
  if (agent.connection || agent.is_over || agent.has_given_up || agent.outcome) return;
  if (!agent.was_welcome && queue_.now() - agent.joined > schedule_.config.join_timeout) {
    return give_up_leader(agent, "the leader could not be reached");
  }
  if (network_.is_cut(agent.slot) || !leader_process_->is_alive) {
    queue_.after(kConnectInterval, agent.process, [this, &agent] { connect(agent); });
    return;
  }
  const auto connection = network_.connect(agent.slot, agent.process, leader_process_);
  agent.connection = connection;
  connection->sides[kAgentEnd].when_broken = [this, &agent,
                                              connection = std::weak_ptr(connection)] {
    lose_connection(agent, connection.lock());
  };
  network_.send(connection, kAgentEnd,
                [this, connection, &agent, session = agent.session_number,
                 received = agent.session.received(), is_new = !agent.was_welcome] {
                  accept(connection, agent, session, received, is_new);
                });
  queue_.after(kConnectPatience, agent.process, [this, &agent, connection] {
    if (agent.connection != connection || agent.is_welcome) return;
    network_.close(connection, kAgentEnd);
    lose_connection(agent, connection);
  });
}

void Simulation::lose_connection(Agent& agent, const ConnectionPtr& connection) {
  if (agent.connection != connection) return;
  trace_ << "agent " << agent.number << " has lost its connection\n";
  agent.connection.reset();
  agent.is_welcome = false;
  if (agent.was_welcome) {
    agent.leader.broke(queue_.now());
    queue_.after(keep_alive_.reconnect_grace, agent.process, [this, &agent] {
      if (!agent.has_given_up && agent.was_welcome && agent.leader.is_lost(queue_.now())) {
        give_up_leader(agent, "the connection to the leader broke");
      }
    });
  }
  connect(agent);
}

void Simulation::keep_alive(Agent& agent) {
  if (agent.has_given_up) return;
  if (agent.is_welcome) {
    network_.send(agent.connection, kAgentEnd,
                  [this, connection = agent.connection, received = agent.session.received()] {
                    hear_heartbeat(connection, received);
                  });
  }
  if (agent.was_welcome && agent.leader.is_lost(queue_.now())) {
    return give_up_leader(agent, "the leader is silent");
  }
  queue_.after(keep_alive_.interval, agent.process, [this, &agent] { keep_alive(agent); });
}

void Simulation::end_session(Agent& agent) {
  agent.is_over = true;
  agent.is_welcome = agent.was_welcome = false;
  if (agent.connection) network_.close(std::exchange(agent.connection, {}), kAgentEnd);
}

void Simulation::give_up_leader(Agent& agent, const std::string& why) {
  agent.has_given_up = true;
  if (agent.connection) network_.close(std::exchange(agent.connection, {}), kAgentEnd);
  agent.is_welcome = false;
  step(agent, agent::LeaderLost{why});
}

void Simulation::transmit(Agent& agent, const rdzv::Numbered<rdzv::ToLeader>& numbered) {
  if (!agent.is_welcome) return;
  network_.send(agent.connection, kAgentEnd,
                [this, connection = agent.connection, numbered,
                 received = agent.session.received()] { hear(connection, numbered, received); });
}

// Anything that comes over the connection.
void Simulation::receive(Agent& agent, const ConnectionPtr& connection, std::uint64_t confirmed) {
  if (agent.connection != connection) return;
  agent.leader.heard(queue_.now());
  agent.session.confirm(confirmed);
  leave_when_flushed(agent);
}

void Simulation::leave_when_flushed(Agent& agent) {
  const bool is_deaf = agent.is_over || agent.has_given_up;
  if (is_deaf || agent.session.unconfirmed().empty()) leave_now(agent);
}

void Simulation::exit(Agent& agent) {
  if (!agent.process->is_alive) return;
  trace_ << "agent " << agent.number << " exits with " << agent.outcome->exit_code << "\n";
  if (agent.hosts_leader) return exit_leader();
  agent.process->is_alive = false;
  if (agent.connection) network_.close(std::exchange(agent.connection, {}), kAgentEnd);
}

// Killed: the keeper ends its workers in the same moment.
void Simulation::vanish(Agent& agent) {
  agent.died = queue_.now();
  agent.process->is_alive = false;
  for (Worker& worker : agent.workers) worker.is_alive = false;
  agent.facts->live_workers = 0;
  agent.facts->is_gone = true;
}

// ---- workers

void Simulation::end_worker(Agent& agent, int local_rank, std::uint64_t life, ExitStatus status,
                            bool by_itself) {
  Worker& worker = agent.workers[static_cast<std::size_t>(local_rank)];
  if (!worker.is_alive || worker.life != life) return;
  worker.is_alive = false;
  agent.facts->live_workers -= 1;
  trace_ << "worker " << local_rank << " of agent " << agent.number
         << " ends: " << status.to_string() << (by_itself ? ", by its own fault" : "") << "\n";
  agent::WorkerEnded ended{worker.round, local_rank, {}};
  const bool is_of_this_leader = worker.leader == leader_number_;
  if (status.is_success()) {
    if (is_of_this_leader) invariants_.worker_succeeded(worker.round);
  } else {
    if (by_itself && is_of_this_leader) invariants_.worker_failed_by_itself(worker.round);
    ended.failure.emplace();
    ended.failure->local_rank = local_rank;
    ended.failure->status = status;
    break_group({worker.leader, worker.round});
  }
  queue_.after(100us, agent.process, [this, &agent, ended] { step(agent, ended); });
}

// Gloo's peers throw within 40 ms of a worker's death.
void Simulation::break_group(RoundOf round) {
  Group& group = groups_[round];
  group.is_broken = true;
  for (const auto& [peer, local_rank] : group.workers) {
    const Worker& worker = peer->workers[static_cast<std::size_t>(local_rank)];
    if (!worker.is_alive || RoundOf{worker.leader, worker.round} != round) continue;
    queue_.after(random_.time(5ms, 60ms),
                 [this, peer = peer, local_rank = local_rank, life = worker.life] {
                   end_worker(*peer, local_rank, life, ExitStatus::exited(1));
                 });
  }
}

// Of all whose workers died with it.
void Simulation::break_groups_of(const Agent& agent) {
  for (auto& [round, group] : groups_) {
    const auto is_its_own = [&](const auto& worker) { return worker.first == &agent; };
    if (std::ranges::any_of(group.workers, is_its_own)) break_group(round);
  }
}

// ---- the leader

template <typename Step>
void Simulation::lead(NodeId from, const rdzv::ToLeader* message, Step step) {
  if (message != nullptr) {
    trace_ << "leader <- node " << number(from) << " " << name_of(*message) << "\n";
  }
  invariants_.before_step(core_);
  const std::vector<rdzv::ToNode> out = step();
  invariants_.after_step(core_, from, message, out, views_);
  for (const rdzv::ToNode& each : out) {
    trace_ << "    to node " << number(each.to) << " " << name_of(each.message) << "\n";
    const bool is_late = std::holds_alternative<rdzv::DeclaredLost>(each.message) && !is_silence_;
    const auto peer = peers_.find(each.to);
    require(!is_late || peer == peers_.end() || may_be_late(*peer->second.agent),
            "a node that does what it is told to was lost");
    tell(each.to, each.message);
  }
  arm_leader();
  end_leader_when_done();
}

void Simulation::tell(NodeId to, const rdzv::ToAgent& message) {
  const auto found = peers_.find(to);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  if (peer.agent->hosts_leader) {
    queue_.after(0us, leader_process_, [this, &agent = *peer.agent, message] {
      std::visit([&](const auto& m) { step(agent, m); }, message);
    });
    return;
  }
  transmit(peer, peer.session.send(message));
  if (std::holds_alternative<rdzv::Refused>(message) ||
      std::holds_alternative<rdzv::DeclaredLost>(message)) {
    sessions_.erase(peer.session_number);
    liveness_.forget(to);
    peers_.erase(found);
  }
}

void Simulation::transmit(const Peer& peer, const rdzv::Numbered<rdzv::ToAgent>& numbered) {
  if (!peer.connection) return;
  network_.send(peer.connection, kLeaderEnd,
                [this, connection = peer.connection, &agent = *peer.agent, numbered,
                 received = peer.session.received()] {
                  receive(agent, connection, received);
                  if (agent.connection != connection) return;
                  const auto arrival = agent.session.receive(numbered.number);
                  using Arrival = rdzv::ResendQueue<rdzv::ToLeader>::Arrival;
                  require(arrival != Arrival::kGap, "a message to an agent was lost");
                  if (arrival == Arrival::kRepeated) return;
                  if (std::holds_alternative<rdzv::DeclaredLost>(numbered.message))
                    end_session(agent);
                  std::visit([&](const auto& m) { step(agent, m); }, numbered.message);
                });
}

void Simulation::accept(const ConnectionPtr& connection, Agent& agent, std::uint64_t session,
                        std::uint64_t received, bool is_new) {
  const auto known = sessions_.find(session);
  if (known != sessions_.end() && core_.can_resume(known->second, session)) {
    const NodeId id = known->second;
    Peer& peer = peers_.at(id);
    peer.connection = connection;
    connection->node = id;
    peer.session.confirm(received);
    welcome(id, peer.session.received());
    for (const auto& numbered : peer.session.unconfirmed()) transmit(peer, numbered);
    liveness_.heard(id, queue_.now());
    views_[id].is_connected = true;
    lead(id, nullptr, [&] { return core_.step(queue_.now(), id, rdzv::NodeResumed{}); });
    return;
  }
  if (known != sessions_.end()) {
    peers_.erase(known->second);
    sessions_.erase(known);
  }
  if (!is_new) {
    trace_ << "leader does not know agent " << agent.number << " any more\n";
    network_.send(connection, kLeaderEnd, [this, &agent, connection, leader = leader_number_] {
      receive(agent, connection, 0);
      if (agent.connection != connection) return;
      end_session(agent);
      if (agent.leader_number == leader) return step(agent, rdzv::DeclaredLost{});
      step(agent, agent::LeaderReplaced{});
    });
    return;
  }
  const NodeId id{next_node_++};
  trace_ << "agent " << agent.number << " is node " << number(id) << "\n";
  sessions_[session] = id;
  Peer& peer = peers_[id];
  peer.session_number = session;
  peer.connection = connection;
  peer.agent = &agent;
  peer.session.receive(1);  // the hello, which opens a session
  connection->node = id;
  liveness_.heard(id, queue_.now());
  views_[id] = {hello_of(agent), true, agent.facts};
  welcome(id, 1);
  const rdzv::ToLeader hello = hello_of(agent);
  lead(id, &hello, [&] { return core_.step(queue_.now(), id, hello); });
}

void Simulation::welcome(NodeId id, std::uint64_t received) {
  const Peer& peer = peers_.at(id);
  const auto& connection = peer.connection;
  connection->sides[kLeaderEnd].when_broken = [this, id, connection = std::weak_ptr(connection)] {
    lose_peer(id, connection.lock());
  };
  network_.send(connection, kLeaderEnd,
                [this, connection, &agent = *peer.agent, received, leader = leader_number_] {
                  receive(agent, connection, received);
                  if (agent.connection != connection) return;
                  agent.leader_number = leader;
                  agent.is_welcome = agent.was_welcome = agent.was_ever_welcome = true;
                  for (const auto& numbered : agent.session.unconfirmed())
                    transmit(agent, numbered);
                });
}

void Simulation::hear(const ConnectionPtr& connection,
                      const rdzv::Numbered<rdzv::ToLeader>& numbered, std::uint64_t confirmed) {
  hear_heartbeat(connection, confirmed);
  const auto found = peers_.find(*connection->node);
  if (found == peers_.end() || found->second.connection != connection) return;
  Peer& peer = found->second;
  const auto arrival = peer.session.receive(numbered.number);
  using Arrival = rdzv::ResendQueue<rdzv::ToAgent>::Arrival;
  require(arrival != Arrival::kGap, "a message to the leader was lost");
  // Said at once, because an agent that finishes waits for it.
  network_.send(connection, kLeaderEnd,
                [this, &agent = *peer.agent, connection, received = peer.session.received()] {
                  receive(agent, connection, received);
                });
  if (arrival == Arrival::kRepeated) return;
  const NodeId id = found->first;
  const rdzv::ToLeader message = numbered.message;
  lead(id, &message, [&] { return core_.step(queue_.now(), id, message); });
}

void Simulation::hear_heartbeat(const ConnectionPtr& connection, std::uint64_t confirmed) {
  const auto found = peers_.find(*connection->node);
  if (found == peers_.end() || found->second.connection != connection) return;
  if (core_.has(found->first)) liveness_.heard(found->first, queue_.now());
  found->second.session.confirm(confirmed);
}

void Simulation::lose_peer(NodeId id, const ConnectionPtr& connection) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.connection != connection) return;
  trace_ << "leader has lost the connection of node " << number(id) << "\n";
  found->second.connection.reset();
  liveness_.forget(id);
  views_[id].is_connected = false;
  if (!core_.has(id)) {
    sessions_.erase(found->second.session_number);
    peers_.erase(found);
    return;
  }
  lead(id, nullptr, [&] { return core_.step(queue_.now(), id, rdzv::NodeDisconnected{}); });
}

void Simulation::keep_alive_all() {
  if (!leader_process_->is_alive) return;
  for (const auto& [id, peer] : peers_) {
    if (!peer.connection) continue;
    network_.send(peer.connection, kLeaderEnd,
                  [this, &agent = *peer.agent, connection = peer.connection,
                   received = peer.session.received()] { receive(agent, connection, received); });
  }
  for (const NodeId id : liveness_.take_silent(queue_.now())) {
    trace_ << "leader: node " << number(id) << " is silent\n";
    is_silence_ = true;
    lead(id, nullptr, [&] { return core_.step(queue_.now(), id, rdzv::NodeSilent{}); });
    is_silence_ = false;
  }
  check_that_the_dead_are_noticed();
  queue_.after(keep_alive_.interval, leader_process_, [this] { keep_alive_all(); });
}

// A cut may delay what a node said before it died.
void Simulation::check_that_the_dead_are_noticed() const {
  for (const auto& [id, peer] : peers_) {
    if (!peer.agent->died || !core_.has(id)) continue;
    const auto cuts_it = [slot = peer.agent->slot](const Fault& fault) {
      return fault.kind == Kind::kPartition && fault.slot == slot;
    };
    const bool was_cut = std::ranges::any_of(schedule_.faults, cuts_it);
    const CoreTime since = std::max(*peer.agent->died, leader_resumed_);
    require(was_cut || queue_.now() - since < keep_alive_.timeout() + 2 * keep_alive_.interval,
            "a dead node was not noticed in time");
  }
}

void Simulation::arm_leader() {
  leader_timer_ += 1;
  const auto deadline = core_.deadline();
  if (!deadline) return;
  queue_.after(std::max(*deadline - queue_.now(), CoreTime::duration(0)), leader_process_,
               [this, timer = leader_timer_] {
                 if (timer != leader_timer_) return;
                 lead(NodeId{}, nullptr, [&] { return core_.tick(queue_.now()); });
               });
}

void Simulation::end_leader_when_done() {
  if (!core_.was_everyone_told() || !leader_process_->is_alive) return;
  Agent* own = schedule_.leader_is_alone ? nullptr : current_[0];
  own != nullptr ? leave_now(*own) : exit_leader();
}

void Simulation::exit_leader() {
  trace_ << "leader exits\n";
  leader_process_->is_alive = false;
  for (const auto& [id, peer] : peers_) {
    if (peer.connection) network_.close(peer.connection, kLeaderEnd);
  }
}

void Simulation::kill_leader(std::optional<CoreTime::duration> comes_back_after) {
  leader_was_killed_ = true;
  is_leader_gone_ = !comes_back_after;
  was_end_near_ = core_.has_ended();
  leader_process_->is_alive = false;
  if (!schedule_.leader_is_alone && current_[0] != nullptr) {
    vanish(*current_[0]);
    break_groups_of(*current_[0]);
  }
  network_.reset_all([](const Connection&) { return true; });
  if (comes_back_after) queue_.after(*comes_back_after, [this] { start_leader(); });
}

// Another process at the same endpoint, which knows nothing.
void Simulation::start_leader() {
  trace_ << "the leader is started again\n";
  // A host that was without power answers what it does not know with a reset.
  network_.reset_all([](const Connection&) { return true; });
  leader_number_ += 1;
  leader_process_ = std::make_shared<Process>();
  core_ = rdzv::RoundCore(schedule_.config);
  liveness_ = rdzv::Liveness(keep_alive_);
  peers_.clear();
  sessions_.clear();
  views_.clear();
  next_node_ = 1;
  leader_timer_ += 1;
  invariants_.leader_began();
  keep_alive_all();
  if (!schedule_.leader_is_alone) start_agent(0);
}

// ---- faults

void Simulation::inject(const Fault& fault) {
  Agent* agent = current_[static_cast<std::size_t>(fault.slot)];
  const bool is_of_agent = fault.kind == Kind::kLeaderKilled ? !schedule_.leader_is_alone
                                                             : fault.kind != Kind::kPartition;
  if (is_of_agent && (agent == nullptr || !agent->process->is_alive)) return;
  trace_ << "FAULT " << name_of(fault) << "\n";
  const auto of_slot = [&](const Connection& connection) { return connection.slot == fault.slot; };
  switch (fault.kind) {
    case Kind::kWorkerDies: {
      const int local_rank = random_.number(0, static_cast<int>(agent->workers.size()) - 1);
      const auto& worker = agent->workers[static_cast<std::size_t>(local_rank)];
      end_worker(*agent, local_rank, worker.life, ExitStatus::exited(3), /*by_itself=*/true);
      return;
    }
    case Kind::kAgentKilled: {
      if (agent->hosts_leader) return kill_leader(fault.comes_back_after);
      vanish(*agent);
      network_.reset_all(of_slot);
      break_groups_of(*agent);
      break;
    }
    case Kind::kPowerLost:
      vanish(*agent);
      if (!agent->hosts_leader) break;
      leader_was_killed_ = true;
      is_leader_gone_ = !fault.comes_back_after;
      if (fault.comes_back_after) {
        queue_.after(*fault.comes_back_after, [this] { start_leader(); });
      }
      return;
    case Kind::kPaused:
      agent->process->is_paused = true;
      queue_.after(fault.length, [this, process = agent->process] {
        trace_ << "FAULT is over: continued\n";
        if (process == leader_process_) leader_resumed_ = queue_.now();
        queue_.resume(process);
      });
      return;
    case Kind::kConnectionLost:
      network_.reset_all(of_slot);
      return;
    case Kind::kPartition:
      for (const End towards : {kAgentEnd, kLeaderEnd}) {
        if (!(towards == kLeaderEnd ? fault.towards_leader : fault.from_leader)) continue;
        network_.set_cut(fault.slot, towards, true);
        queue_.after(fault.length, [this, slot = fault.slot, towards] {
          trace_ << "FAULT is over: healed\n";
          network_.set_cut(slot, towards, false);
        });
      }
      return;
    case Kind::kStopSignal:
    case Kind::kPreemptSignal:
      agent->was_told_to_leave = true;
      queue_.run_in(agent->process, [this, agent, kind = fault.kind] {
        if (kind == Kind::kStopSignal) {
          step(*agent, agent::StopSignal{SIGTERM});
        } else {
          step(*agent, agent::PreemptSignal{SIGUSR1});
        }
      });
      return;
    case Kind::kRestartAsked:
    case Kind::kStopAsked:
      queue_.run_in(agent->process, [this, agent, kind = fault.kind] {
        if (kind == Kind::kRestartAsked) {
          perform(*agent, agent::TellLeader{rdzv::RestartAsked{agent->core.round()}});
        } else {
          perform(*agent, agent::TellLeader{rdzv::StopAsked{SIGTERM}});
        }
      });
      return;
    case Kind::kStuck:
      if (agent->hosts_leader) return;
      agent->is_stuck = agent->was_stuck = true;
      queue_.after(fault.length, agent->process, [this, agent] {
        if (!std::exchange(agent->is_stuck, false)) return;
        trace_ << "FAULT is over: agent " << agent->number << " goes on\n";
        for (const auto& event : std::exchange(agent->unseen, {})) step(*agent, event);
      });
      return;
    case Kind::kLeaderKilled:
      if (leader_process_->is_alive) kill_leader(fault.comes_back_after);
      return;
  }
  if (!fault.comes_back_after || agent->hosts_leader) return;
  queue_.after(*fault.comes_back_after, [this, slot = fault.slot] { start_agent(slot); });
}

// ---- the end

bool Simulation::may_be_late(const Agent& agent) const {
  const auto holds_it_up = [&](const Fault& fault) {
    return (fault.kind == Kind::kPaused || fault.kind == Kind::kPartition) &&
           fault.slot == agent.slot;
  };
  return agent.was_stuck || agent.died || std::ranges::any_of(schedule_.faults, holds_it_up);
}

// A connection that breaks now and then is no excuse.
bool Simulation::may_lose_leader(const Agent& agent) const {
  if (leader_was_killed_ || agent.was_stuck || !agent.was_ever_welcome) return true;
  int breaks = 0;
  for (const Fault& fault : schedule_.faults) {
    const bool is_of_leader = fault.slot == 0 && !schedule_.leader_is_alone;
    if (fault.kind == Kind::kPaused && (fault.slot == agent.slot || is_of_leader)) return true;
    if (fault.slot != agent.slot) continue;
    if (fault.kind == Kind::kPartition) return true;
    breaks += fault.kind == Kind::kConnectionLost ? 1 : 0;
  }
  return breaks > 2;
}

void Simulation::check_end() {
  trace_ << "the end is checked\n";
  const auto& outcome = invariants_.outcome();
  // A leader on its own waits for the first node as long as it takes.
  const bool nobody_came = schedule_.leader_is_alone && next_node_ == 1;
  const bool is_leader_excused = is_leader_gone_ || nobody_came;
  require(is_leader_excused || outcome, "the job has not ended long after all faults");
  require(is_leader_excused || !leader_process_->is_alive,
          "the leader waits for somebody for ever");
  for (const auto& agent : agents_) {
    require(!agent->process->is_alive, "an agent has not ended long after all faults");
    require(agent->facts->live_workers == 0, "workers were left behind");
    if (!agent->outcome) continue;  // killed
    const int exit_code = agent->outcome->exit_code;
    const bool has_left =
        agent->was_told_to_leave && (exit_code == 128 + SIGTERM || exit_code == kExitPreempted);
    const bool has_lost_leader = exit_code == kExitLeaderLost && may_lose_leader(*agent);
    const bool is_excused = has_left || has_lost_leader || exit_code == kExitUsage;
    require(is_excused || invariants_.was_outcome(*agent->outcome),
            "an agent ended otherwise than the job");
  }
  const bool was_new_leader = schedule_.has_only_new_leader && leader_number_ > 0 && !was_end_near_;
  require(!was_new_leader || (outcome && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded &&
                              outcome->restarts == 0),
          "a job did not go on under a leader that came back at once");
  if (!schedule_.has_only_short_drops) return;
  require(
      outcome && outcome->kind == rdzv::JobOutcome::Kind::kSucceeded && invariants_.rounds() == 1,
      "a connection that broke for a moment ended a round");
}

}  // namespace

Result simulate(const Schedule& schedule, bool with_trace) {
  Result result = Simulation(schedule, with_trace).run();
  if (with_trace) result.trace = to_string(schedule) + result.trace;
  return result;
}

}  // namespace ddprun::sim
