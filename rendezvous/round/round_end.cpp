#include "rendezvous/round/round_end.h"

namespace ddprun::rdzv {

void AwaitedAnswers::insert(NodeId node, CoreTime until) {
  erase(node);
  until_[node] = until;
  if (until != CoreTime::max()) by_time_.emplace(until, node);
}

bool AwaitedAnswers::erase(NodeId node) {
  const auto found = until_.find(node);
  if (found == until_.end()) return false;
  by_time_.erase({found->second, node});
  until_.erase(found);
  return true;
}

std::optional<std::pair<CoreTime, NodeId>> AwaitedAnswers::next() const {
  if (by_time_.empty()) return {};
  return *by_time_.begin();
}

void StoppingRound::add_consequences(const std::vector<WorkerFailure>& failures, std::size_t most) {
  for (const WorkerFailure& failure : failures) {
    if (consequences.size() >= most) {
      consequences_left_out += 1;
      continue;
    }
    consequences.push_back(failure);
    consequences.back().stderr_tail.clear();  // the report shows only the cause's
  }
}

void StoppingRound::node_gone(NodeId node, bool is_loss) {
  awaited.erase(node);
  gone.insert(node);
  has_lost_node |= is_loss;
}

bool StoppingRound::is_own_fault() const {
  return cause.has_value() && gone.size() == gone.count(cause_node);
}

JobOutcome StoppingRound::take_outcome() {
  JobOutcome outcome;
  outcome.cause = std::exchange(cause, std::nullopt);
  outcome.consequences = std::exchange(consequences, {});
  outcome.consequences_left_out = consequences_left_out;
  return outcome;
}

}  // namespace ddprun::rdzv
