// A round that is being stopped: which nodes have not answered RoundStop yet, which failure ended
// the round, and which failures came after it. A value of the RoundCore, which records events in it
// until every node has answered or is gone, and then settles the cost.
//
// When a node dies, the workers of other nodes fail within milliseconds, long before the loss is
// noticed. So if a node other than the failed one is gone by the end, the failure is a consequence
// and costs nothing.
//
//   how it ends \ the failure      none, or explained by a node that is gone   the worker's own fault
//   that may be retried (1)        next round, which costs nothing             next round, which costs a restart (2)
//   that may not, or not again (3) likewise                                    the job fails
//   a stop, may be retried         the job is stopped                          the job is stopped
//   a stop, may not                the job is stopped                          the job fails
//
//   (1) as the budget and its rules allow, or because its restart is paid; never if `retry` says so
//   (2) nothing if it is paid
//   (3) --no-progress-restarts: also if its restart is paid
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// Nodes that have not answered yet, each with its time limit.
class AwaitedAnswers {
 public:
  // CoreTime::max(): no time limit
  void insert(NodeId node, CoreTime until) {
    erase(node);
    until_[node] = until;
    if (until != CoreTime::max()) by_time_.emplace(until, node);
  }

  // false: it was not in the set
  bool erase(NodeId node) {
    const auto found = until_.find(node);
    if (found == until_.end()) return false;
    by_time_.erase({found->second, node});
    until_.erase(found);
    return true;
  }

  bool is_empty() const { return until_.empty(); }
  std::size_t size() const { return until_.size(); }
  // among those with a time limit
  std::optional<std::pair<CoreTime, NodeId>> next() const {
    if (by_time_.empty()) return {};
    return *by_time_.begin();
  }

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
  std::set<NodeId> gone;       // lost or left in this round
  bool has_lost_node = false;  // one of them is lost
  std::vector<int> done;       // ranks that had ended with 0 before
  int world_size = 0;          // that the round had, if it ran

  // What decides whether the cause is retried.
  struct ByBudget {};
  struct Paid {};  // a replacement of that worker was begun, which has charged the budget
  struct Never {   // it ends the job, whatever the budget allows
    std::string why;
  };
  std::variant<ByBudget, Paid, Never> retry;

  struct Stop {  // the leader's own node leaves, or a stop was asked for: no round follows
    NodeLeaving why;
    std::string asked_by;  // the user's request; empty: a signal
  };
  std::optional<Stop> stop;

  bool are_all_done() const {
    const bool is_preempted = stop && stop->why.is_preemption;
    return world_size > 0 && !cause && !is_preempted && std::cmp_equal(done.size(), world_size);
  }
  bool is_paid() const { return std::holds_alternative<Paid>(retry); }
  enum class End { kNextRound, kFailed, kStopped, kSucceeded };
  // `allows_retry`: the budget and its rules, for the cause. `is_in_vain`: the restarts so far brought no step more.
  End end(bool allows_retry, bool is_in_vain = false) const {
    if (are_all_done()) return End::kSucceeded;
    const bool may_retry =
        !is_in_vain && (is_paid() || (allows_retry && !std::holds_alternative<Never>(retry)));
    if (is_own_fault() && !may_retry) return End::kFailed;
    return stop ? End::kStopped : End::kNextRound;
  }

  // Those beyond `most` are only counted.
  void add_consequences(const std::vector<WorkerFailure>& failures, std::size_t most) {
    for (const WorkerFailure& failure : failures) {
      if (consequences.size() >= most) {
        consequences_left_out += 1;
        continue;
      }
      consequences.push_back(failure);
      consequences.back().stderr_tail.clear();  // the report shows only the cause's
    }
  }

  // A node of the round is gone: its answer is not awaited any more.
  void node_gone(NodeId node, bool is_loss) {
    awaited.erase(node);
    gone.insert(node);
    has_lost_node |= is_loss;
  }

  // Whether the cause is the failed worker's own fault, not a consequence of another node's end.
  bool is_own_fault() const { return cause.has_value() && gone.size() == gone.count(cause_node); }

  // The outcome, with the failures, of a job that ends with this round; moves them out of this
  // object.
  JobOutcome take_outcome() {
    JobOutcome outcome;
    outcome.cause = std::exchange(cause, std::nullopt);
    outcome.consequences = std::exchange(consequences, {});
    outcome.consequences_left_out = consequences_left_out;
    std::ranges::sort(done);
    outcome.done = std::exchange(done, {});
    return outcome;
  }
};

}  // namespace ddprun::rdzv
