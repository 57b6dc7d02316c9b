#include "rendezvous/round/round_messages.h"

#include <array>

namespace ddprun::rdzv {

std::string describe(const NodeGone& gone) {
  constexpr std::array kHow{
      "was lost: its connection broke and did not come back",
      "was lost: nothing was heard of it for too long",
      "was lost, and another node took its place",
      "left",
      "cannot go on: a worker there does not end even after SIGKILL",
      "was lost: its agent lives, but did not answer the leader in time",
  };
  const std::string host = gone.host.empty() ? "" : " (" + gone.host + ")";
  return "node " + std::to_string(gone.node_rank) + host + " " +
         kHow[static_cast<std::size_t>(gone.how)];
}

}  // namespace ddprun::rdzv
