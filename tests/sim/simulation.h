// One job from its first hello to its last exit, in virtual time: the shipped RoundServer, and for
// each agent the shipped RoundClient, over a virtual network (virtual_network.h); the real NodeCore
// over simulated workers (virtual_node.h). After every step of the leader the invariants are checked
// (invariants.h).
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/schedule.h"

namespace ddprun::sim {

struct Result {
  std::string violation;  // empty: every invariant held
  std::string trace;      // if asked for
  int rounds = 0;
  std::uint64_t events = 0;
};

Result simulate(const Schedule& schedule, bool with_trace = false);

}  // namespace ddprun::sim
