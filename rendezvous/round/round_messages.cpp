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
      "is left out",
  };
  return name_of(gone) + " " + kHow[static_cast<std::size_t>(gone.how)] +
         (gone.why.empty() ? "" : ": " + gone.why);
}

std::string describe(const WaitAsSpare& wait) {
  switch (wait.why) {
    case WaitAsSpare::Why::kNoRoom:
      return "the job has its maximum number of nodes; this one joins when another leaves";
    case WaitAsSpare::Why::kJobIsFinishing:
      return "some workers of the job have finished already";
    case WaitAsSpare::Why::kLeftOut:
      break;
  }
  return "it is left out while enough other nodes are there: " + wait.left_out +
         "; 'ddpctl undrain' lets it take part again";
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
