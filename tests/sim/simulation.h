// One job from its first hello to its last exit, in virtual time: the real cores (RoundCore,
// Liveness, ResendQueue; NodeCore, LeaderLiveness for each agent) between simulated processes, workers
// and connections. After every step the invariants are checked (invariants.h).
//
// The mistake to avoid: giving the shells in here a decision that belongs into a core, for then the
// real shells have it to make too, unproved.
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
