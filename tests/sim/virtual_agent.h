// A simulated agent in virtual time: a process with the production NodeCore, models of its
// surroundings (workers, timers, the round's store), and its Leader, a production shell over a
// virtual transport, connected as the supervisor's LeaderPort does it. The only place in the
// simulator that drives a NodeCore.
//
// Do not make decisions of the NodeCore in here, because the production supervisor would then need
// the same code, untested.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/round/round_core.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/invariants.h"
#include "tests/sim/random.h"
#include "tests/sim/simulation.h"
#include "tests/sim/trace.h"
#include "tests/sim/virtual_network.h"

namespace ddprun::sim {

class VirtualAgent;
class VirtualJob;

// The workers of one round, which join, train and fail together. Every round has a store of its
// own, and no two stores have the same port.
struct GroupKey {
  Round round{};
  std::uint16_t port = 0;
  auto operator<=>(const GroupKey&) const = default;  // NOLINT(modernize-use-nullptr)
};
struct WorkerGroup {
  int world_size = 0;
  int succeeded = 0;
  bool is_broken = false;
  std::vector<std::pair<VirtualAgent*, int>> workers;  // and their local ranks
};

class VirtualAgent {
 public:
  struct Settings {
    int number = 0;  // counts all agents ever started
    int slot = 0;
    agent::NodeConfig node;
    bool leads_for_good = false;  // the leader is in this process and ends with this node
    rdzv::NodeHello hello;        // without last_round
  };
  using MakeLeader = std::function<std::unique_ptr<rdzv::Leader>(rdzv::LeaderEvents)>;

  VirtualAgent(VirtualJob& job, Settings settings, ProcessPtr process);

  // Creates its leader and joins it.
  void start(const MakeLeader& make_leader);

  void signal(bool is_preemption);                                     // SIGTERM or SIGUSR1
  void say(const rdzv::ToLeader& message) { leader_->tell(message); }  // ddpctl

  // ---- faults
  void kill();              // its keeper ends its workers at the same time
  void let_peers_notice();  // the workers of other nodes notice that those of this one are dead
  void fail_worker();       // one of them fails by itself; does nothing if none lives
  void set_stuck(bool is_stuck);  // while stuck, it handles no messages

  int number() const { return settings_.number; }
  int slot() const { return settings_.slot; }
  const ProcessPtr& process() const { return process_; }
  bool is_alive() const { return process_->is_alive; }
  rdzv::Leader& leader() { return *leader_; }
  Round round() const { return core_.round(); }
  int live_workers() const { return facts_->live_workers; }
  const std::optional<rdzv::JobOutcome>& outcome() const { return outcome_; }
  const std::shared_ptr<Invariants::Facts>& facts() const { return facts_; }
  bool was_told_to_leave() const { return was_told_to_leave_; }
  bool was_welcome() const { return was_welcome_; }  // whether a leader has sent it a message
  bool was_stuck() const { return was_stuck_; }
  std::optional<CoreTime> died() const { return died_; }

 private:
  struct Worker {
    bool is_alive = false;
    std::uint64_t life = 0;  // counts starts: events of an earlier one are dropped
    bool ignores_term = false;
  };

  void hear(rdzv::LeaderEvent event);
  void step(const agent::NodeEvent& event);
  void step_after(CoreTime::duration delay, const agent::NodeEvent& event);
  void pump();
  void perform(const agent::OpenRoundStore& action);
  void perform(const agent::CloseStore& action);
  void perform(const agent::StartWorkers& action);
  void perform(const agent::SignalWorker& action);
  void perform(const agent::AskToLeave& action);
  void perform(const agent::ArmTimer& action);
  void perform(const agent::GraceOver&) {}
  void perform(const agent::TakeStacks& action);
  void perform(const agent::CloseRound& action);
  void perform(const agent::TellLeader& action) { leader_->tell(action.message); }
  void perform(const agent::Join& action);
  void perform(const agent::Announce&) {}
  void perform(const agent::Finish& action);
  void perform(const agent::TakeStep& action);
  void perform(const agent::Exit& action);
  void leave_leader(std::function<void()> done);
  void left_leader();
  bool ends_step(const agent::NodeEvent& event) const;

  void end_worker_after(CoreTime::duration delay, int local_rank, ExitStatus status);
  void end_worker(int local_rank, std::uint64_t life, ExitStatus status, bool by_itself = false);
  static void break_group(VirtualJob& job, GroupKey key);

  GroupKey group() const { return {started_->round, started_->master_port}; }

  VirtualJob& job_;
  const Settings settings_;
  const ProcessPtr process_;
  std::function<void()> when_left_;  // set while the node leaves its leader at the end
  bool was_told_to_leave_ = false;
  bool was_welcome_ = false;
  agent::NodeCore core_;
  std::vector<Worker> workers_;
  std::shared_ptr<Invariants::Facts> facts_ = std::make_shared<Invariants::Facts>();
  agent::TimerId timer_{};                   // the one armed last
  std::optional<rdzv::RoundStart> started_;  // the last round
  std::optional<rdzv::JobOutcome> outcome_;
  std::optional<agent::EndStep> end_step_;  // the one begun last
  // That step is done, its time limit has passed, or a signal came.
  bool may_take_next_step_ = true;
  std::deque<agent::NodeEvent> events_;  // not handled yet
  bool is_stepping_ = false;
  bool is_stuck_ = false;
  bool was_stuck_ = false;
  std::optional<CoreTime> died_;
  std::unique_ptr<rdzv::Leader> leader_;
};

// A simulated job: the agents, and what they share.
class VirtualJob {
 public:
  VirtualJob(std::uint64_t seed, bool with_trace, std::size_t slots, CoreTime::duration delay_max,
             const WorkerTiming& its_timing)
      : trace(queue, with_trace),
        random(seed),
        network(queue, random, slots, delay_max),
        timing(its_timing),
        current(slots) {}

  virtual ~VirtualJob() = default;

  // Begins the job, performs events up to `limit`, and checks the end.
  Result run(CoreTime limit, std::uint64_t events_max);

  // A new agent in its slot.
  VirtualAgent& add(VirtualAgent::Settings settings, ProcessPtr process);
  void kill(VirtualAgent& agent);  // by SIGKILL
  void trace_step(int leader, const rdzv::RoundInput& input, const std::vector<rdzv::ToNode>& out);

  virtual void begin() = 0;
  // For the invariants.
  virtual void workers_start(const VirtualAgent& agent, const rdzv::RoundStart& start) = 0;
  virtual void worker_ended(GroupKey /*key*/, const ExitStatus&, bool /*by_itself*/) {}
  virtual void leader_says(const VirtualAgent& agent, const rdzv::LeaderEvent& event) = 0;
  virtual void check_end() = 0;

  EventQueue queue;
  Trace trace;
  Random random;
  VirtualNetwork network;
  WorkerTiming timing;
  std::map<GroupKey, WorkerGroup> groups;
  std::uint16_t last_port = 1000;  // of a store
  std::vector<std::unique_ptr<VirtualAgent>> agents;
  std::vector<VirtualAgent*> current;  // by slot
};

// The address of an agent or of a slot.
std::string host_of(int number);

}  // namespace ddprun::sim
