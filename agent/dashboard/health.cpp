#include "agent/dashboard/health.h"

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {

Health health_of(const NodeStatus& node) {
  if (!node.hung.empty()) {
    const HungStatus& first = node.hung.front();
    return {false, false,
            "hangs: " + printable(first.sentence) + ", for " + time_in_words(first.waited)};
  }
  switch (node.state) {
    case NodeState::kRunning:
      return {true, true, "well: a round runs"};
    case NodeState::kLooking:
      return {true, false, "no round runs: the agent looks for the leader"};
    case NodeState::kWaiting:
      return {true, false, "no round runs: the agent waits for the next one"};
    case NodeState::kStopping:
      return {true, false, "no round runs: the workers are being stopped"};
    case NodeState::kEnded:
      break;
  }
  return {true, false, "no round runs: the job has ended"};
}

}  // namespace ddprun::agent
