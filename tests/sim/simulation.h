// Simulates one job from its first hello to its last exit in virtual time: the production
// RoundServer, and for each agent the production RoundClient, over a virtual network
// (virtual_network.h); the production NodeCore with simulated workers (virtual_node.h). The
// invariants (invariants.h) are checked after every step of the leader.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/schedule.h"

namespace ddprun::sim {

struct Result {
  std::string violation;  // empty: every invariant held
  std::string trace;      // if it was requested
  int rounds = 0;
  std::uint64_t events = 0;
};

Result simulate(const Schedule& schedule, bool with_trace = false);

}  // namespace ddprun::sim
