// What must hold in every simulated job, checked against the true state of the simulation (which
// workers live, which failed by themselves), not against the cores' view. Throws Violation.
//
// clang-format off
//   agreement    the RoundStarts of a round agree; ranks are 0 … world - 1 without gaps, per role too;
//                group size between min and max; exact ranks are those asked for; survivors keep
//                their order, newcomers come after them; no connected node stays outside
//                while there is room and no worker has finished
//   one round    when a round is announced, no worker of an earlier one lives on a node of it; an
//                agent starts workers only when none of its own live
//   fresh store  MASTER_PORT is that of the store which rank 0's agent has open for this very round
//   success      only when every worker of the last round has ended with 0
//   budget       one restart for a round that a worker's failure ended, none for one that lost a node
//                (except for a failure that this node itself had reported); never more than allowed;
//                only if a worker failed by itself in that round
//   delivery     no message is lost to a connection that breaks and is resumed; a short break ends
//                no round
//   progress     a dead node is noticed in time; long after the last fault the job has ended, and
//                no agent waits
//   new leader   a leader that is killed and started again takes over: the rounds of an agent go up, no
//                restart that an agent was told of is forgotten, and a job that lost nothing but its
//                leader for a short time succeeds
//   outcome      every agent ends as the leader decided, except those that left, lost the leader, or
//                never joined; none of their workers is left
// clang-format on
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

#include "rendezvous/round/round_core.h"
#include "tests/sim/schedule.h"

namespace ddprun::sim {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}

class Invariants {
 public:
  explicit Invariants(const Schedule& schedule) : schedule_(schedule) {}

  // The true state of an agent.
  struct Facts {
    bool is_gone = false;  // dead or about to exit; the leader may not know yet
    int live_workers = 0;
    std::optional<Round> store;  // the round whose store is open there
    std::uint16_t store_port = 0;
  };
  struct NodeView {
    rdzv::NodeHello hello;
    bool is_connected = true;  // as far as the leader can know
    std::shared_ptr<const Facts> facts;
  };
  using Views = std::map<NodeId, NodeView>;

  // Called around every step of the leader.
  void before_step(const rdzv::RoundCore& core);
  void after_step(const rdzv::RoundCore& core, NodeId from, const rdzv::ToLeader* message,
                  const std::vector<rdzv::ToNode>& out, const Views& nodes);

  void workers_started(NodeId node, const rdzv::RoundStart& start, int live_workers) const;
  void worker_failed_by_itself(Round round) { faults_of_workers_.insert(round); }
  void worker_succeeded(Round round) { successes_[round] += 1; }

  // Another process leads, after the last one was killed.
  void leader_began();

  const std::optional<rdzv::JobOutcome>& outcome() const { return outcome_; }
  // Whether this leader, or an earlier one that was killed, has decided this outcome.
  bool was_outcome(const rdzv::JobOutcome& outcome) const;
  int rounds() const { return rounds_of_others_ + rounds_; }

 private:
  void announced(const rdzv::RoundCore& core, const std::vector<rdzv::ToNode>& out,
                 const Views& nodes);
  void ended(const rdzv::RoundCore& core, const rdzv::JobOutcome& outcome);
  void settled(const rdzv::RoundCore& core);

  const Schedule& schedule_;
  bool was_running_ = false;
  bool had_ended_ = false;
  Round round_before_{};
  int restarts_before_ = 0;

  bool is_announced_ = false;                  // the current round
  std::map<NodeId, rdzv::RoundStart> starts_;  // of the round announced last
  std::vector<NodeId> group_;
  std::optional<NodeId> failed_first_;  // the node whose failure report ended that round
  bool are_some_done_ = false;
  std::set<Round> faults_of_workers_;
  std::map<Round, int> successes_;
  std::optional<rdzv::JobOutcome> outcome_;
  int rounds_ = 0;
  std::vector<rdzv::JobOutcome> outcomes_of_others_;  // of leaders that were killed
  int rounds_of_others_ = 0;
};

}  // namespace ddprun::sim
