#include "rendezvous/round/round_messages.h"

#include <array>

namespace ddprun::rdzv {

std::string name_of(const NodeGone& gone) {
  const std::string node =
      gone.node_rank < 0 ? "a node that waited" : "node " + std::to_string(gone.node_rank);
  return gone.host.empty() ? node : node + " (" + gone.host + ")";
}

std::string describe(const NodeGone& gone) {
  constexpr std::array kHow{
      "was lost: its connection broke and did not come back",
      "was lost: nothing was heard of it for too long",
      "was lost, and another node took its place",
      "left",
      "cannot go on: a worker there does not end even after SIGKILL",
      "was lost: its agent lives, but did not answer the leader in time",
  };
  return name_of(gone) + " " + kHow[static_cast<std::size_t>(gone.how)];
}

std::string describe(const WaitForNodes& wait) {
  const std::string needed =
      wait.min_nodes == wait.max_nodes
          ? std::to_string(wait.max_nodes)
          : std::to_string(wait.min_nodes) + " to " + std::to_string(wait.max_nodes);
  return "waiting for nodes: " + std::to_string(wait.present) + " of " + needed + " are here, " +
         std::to_string(wait.left.count()) + " s left" +
         (wait.remark.empty() ? "" : "; " + wait.remark);
}

}  // namespace ddprun::rdzv
