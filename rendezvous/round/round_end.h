// A round that is being stopped: who has not answered RoundStop yet, which failure ended the round,
// and what went wrong after it. A value of the RoundCore, which notes in it what happens until every
// node has answered or is gone, and then settles what it costs.
//
// Workers of other nodes die within milliseconds of a node's death, long before that is known. So if
// another node than the failed one is gone by the end, the failure is a consequence and costs nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// Nodes that have not answered yet, and until when each of them is to.
class AwaitedAnswers {
 public:
  void insert(NodeId node, CoreTime until);  // CoreTime::max(): without a time limit
  bool erase(NodeId node);                   // false: it was not awaited
  bool is_empty() const { return until_.empty(); }
  std::size_t size() const { return until_.size(); }
  std::optional<std::pair<CoreTime, NodeId>> next() const;  // of those that have a time limit

 private:
  std::map<NodeId, CoreTime> until_;
  std::set<std::pair<CoreTime, NodeId>> by_time_;
};

struct StoppingRound {
  std::chrono::microseconds uptime{};
  AwaitedAnswers awaited;
  std::optional<WorkerFailure> cause;       // the failure that ended the round
  NodeId cause_node{};                      // and where it was
  std::vector<WorkerFailure> consequences;  // in the order in which they were reported
  int consequences_left_out = 0;
  std::set<NodeId> gone;  // lost or leaving in this round
  bool has_lost_node = false;
  std::optional<NodeLeaving> last;  // the leader's own node leaves, or a stop: the job ends

  // Those beyond `most` are only counted.
  void add_consequences(const std::vector<WorkerFailure>& failures, std::size_t most);
  // A node of the round goes: nobody awaits its answer.
  void node_gone(NodeId node, bool is_loss);
  // The cause is a fault of its node's worker, and not a consequence of another node's end.
  bool is_own_fault() const;
  // What the outcome of a job that ends with this round says of the failures; leaves none here.
  JobOutcome take_outcome();
};

}  // namespace ddprun::rdzv
