// Checks whether a node that sends NodeHello may take part, and returns what it is told if not.
// Pure: the RoundCore acts on the result.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/round/membership.h"
#include "rendezvous/round/round_config.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// What the node's user has to change before it can be part of this job, or that it claims a last
// round with an impossible number, as a sentence without its subject, which is the node: "asks for
// --nnodes=2, …"; nullopt if it may join.
std::optional<std::string> check_hello(const RoundConfig& config, Round current,
                                       const NodeHello& hello);

// The result for a node that asks for a rank that another node has asked for.
struct RankCheck {
  std::optional<NodeId> replaces;  // its connection is broken: it is removed and loses its rank
  // It is connected, and both cannot take part. `warning` is for a node that waits for its end, `refusal` for one
  // that does not, or not any more.
  std::optional<NodeId> taken_by;
  std::string refusal;
  // Without `taken_by`: the node may take part, but not with that rank.
  std::optional<std::string> warning;
};
RankCheck check_rank(const RoundConfig& config, const Membership& members, const NodeHello& hello);

// Whether one more hello may wait for a rank that a node has: all nodes of a job may be replaced at once.
bool may_claim(const RoundConfig& config, std::size_t waiting);

// An error if too many spares wait already; nullopt otherwise.
std::optional<std::string> check_spares(const RoundConfig& config, const Membership& members);

}  // namespace ddprun::rdzv
