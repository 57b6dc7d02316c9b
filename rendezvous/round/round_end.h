// A round that is being stopped: which nodes have not answered RoundStop yet, which failure ended
// the round, and which failures came after it. A value of the RoundCore, which records events in it
// until every node has answered or is gone, and then settles the cost.
//
// When a node dies, the workers of other nodes fail within milliseconds, long before the loss is
// noticed. So if a node other than the failed one is gone by the end, the failure is a consequence
// and costs nothing.
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

// Nodes that have not answered yet, each with its time limit.
class AwaitedAnswers {
 public:
  void insert(NodeId node, CoreTime until);  // CoreTime::max(): no time limit
  bool erase(NodeId node);                   // false: it was not in the set
  bool is_empty() const { return until_.empty(); }
  std::size_t size() const { return until_.size(); }
  std::optional<std::pair<CoreTime, NodeId>> next() const;  // among those with a time limit

 private:
  std::map<NodeId, CoreTime> until_;
  std::set<std::pair<CoreTime, NodeId>> by_time_;
};

struct StoppingRound {
  std::chrono::microseconds uptime{};
  AwaitedAnswers awaited;
  std::optional<WorkerFailure> cause;       // the failure that ended the round
  NodeId cause_node{};                      // the node of that failure
  std::vector<WorkerFailure> consequences;  // in the order in which they were reported
  int consequences_left_out = 0;
  std::set<NodeId> gone;  // lost or left in this round
  bool has_lost_node = false;
  std::optional<NodeLeaving> last;  // the leader's own node leaves, or a stop: the job ends

  // Those beyond `most` are only counted.
  void add_consequences(const std::vector<WorkerFailure>& failures, std::size_t most);
  // A node of the round is gone: its answer is not awaited any more.
  void node_gone(NodeId node, bool is_loss);
  // Whether the cause is the failed worker's own fault, not a consequence of another node's end.
  bool is_own_fault() const;
  // The outcome, with the failures, of a job that ends with this round; moves them out of this
  // object.
  JobOutcome take_outcome();
};

}  // namespace ddprun::rdzv
