// The RoundStart of each node of a formed group. Pure.
#pragma once

#include <utility>
#include <vector>

#include "rendezvous/round/membership.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// One for each node of members.group(), in its order: `start` has the fields that are equal on all
// nodes (round, port, budget, what has changed); ranks, offsets, sizes and MASTER_ADDR are filled
// in.
std::vector<std::pair<NodeId, RoundStart>> round_starts(const Membership& members,
                                                        RoundStart start);

}  // namespace ddprun::rdzv
