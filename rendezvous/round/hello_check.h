// Whether a node that says NodeHello may take part, and what it is told if not. Pure: what the
// RoundCore does with the verdict is its own.
#pragma once

#include <optional>
#include <string>

#include "rendezvous/round/membership.h"
#include "rendezvous/round/round_config.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// What a node has to change before it can be part of this job; nothing: it fits.
std::optional<std::string> check_hello(const RoundConfig& config, const NodeHello& hello);

// It says that it took part in a round that no job reaches; nothing: it does not.
std::optional<std::string> check_last_round(Round current, const NodeHello& hello);

// A node that asks for a rank which another one has asked for.
struct RankCheck {
  std::optional<NodeId> replaces;  // its connection is broken: it yields its rank, and goes
  std::optional<std::string> refusal;
  std::optional<std::string> warning;  // the node may take part, but not with that rank
};
RankCheck check_rank(const RoundConfig& config, const Membership& members, const NodeHello& hello);

// Too many wait for a place already; nothing: one more may.
std::optional<std::string> check_spares(const RoundConfig& config, const Membership& members);

}  // namespace ddprun::rdzv
