// A simulated job in virtual time: its agents, and what they share.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/node_core.h"
#include "launcher/ctl/core_text.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/round/round_core.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"
#include "tests/sim/schedule.h"
#include "tests/sim/simulation.h"
#include "tests/sim/trace.h"
#include "tests/sim/virtual_network.h"

namespace ddprun::sim {

class VirtualAgent;
class VirtualWorkers;

// The address of an agent or of a slot.
inline std::string host_of(int number) {
  return "10.0." + std::to_string(number / 200) + "." + std::to_string(number % 200 + 1);
}

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
  std::vector<std::pair<VirtualWorkers*, int>> workers;  // and their local ranks
  // Of workers that can recover:
  bool is_complete = false;   // all have started
  int committed = 0;          // steps
  std::uint64_t attempt = 0;  // to do the next one; a death ends it
  std::set<const VirtualWorkers*>
      ready;                   // nodes whose workers have passed the boundary behind the last step
  std::optional<int> left_at;  // the boundary at which a worker has left because of a preemption
  std::optional<int> parked_at;  // the step after which its workers wait to be stopped
};

struct AgentSettings {
  int number = 0;  // counts all agents ever started
  int slot = 0;
  agent::NodeConfig node;
  bool leads_for_good = false;  // the leader is in this process and ends with this node
  rdzv::NodeHello hello;        // without last_round
};

class VirtualJob {
 public:
  VirtualJob(std::uint64_t seed, bool with_trace, std::size_t slots, CoreTime::duration delay_max,
             const WorkerTiming& its_timing, const RecoveryHabits& its_recovery);
  virtual ~VirtualJob();

  // Begins the job, performs events up to `limit`, and checks the end.
  Result run(CoreTime limit, std::uint64_t events_max);

  // A new agent in its slot.
  VirtualAgent& add(AgentSettings settings, ProcessPtr process);
  void kill(VirtualAgent& agent);  // by SIGKILL
  void end_fault_after(CoreTime::duration length, std::function<void()> what) {
    queue.after(length, [this, what = std::move(what)] {
      trace("FAULT is over");
      what();
    });
  }
  void cut(int slot, End towards, CoreTime::duration length) {
    network.set_cut(slot, towards, true);
    end_fault_after(length, [this, slot, towards] { network.set_cut(slot, towards, false); });
  }
  void trace_step(int leader, const rdzv::RoundInput& input, const std::vector<rdzv::ToNode>& out) {
    trace("leader ", leader, " <- ", [&] { return agent::in_words(input); });
    for (const rdzv::ToNode& each : out) {
      trace("    ", [&] { return agent::in_words(each); });
    }
  }

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
  RecoveryHabits recovery;
  Random habits;  // of workers that can recover: a job without them has the same events as ever
  std::map<GroupKey, WorkerGroup> groups;
  std::uint16_t last_port = 1000;  // of a store
  std::vector<std::unique_ptr<VirtualAgent>> agents;
  std::vector<VirtualAgent*> current;  // by slot
};

}  // namespace ddprun::sim
