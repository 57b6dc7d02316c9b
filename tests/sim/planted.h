// The active one of the planted bugs (planted_bugs.cmake). Not part of any shipped program: only
// the copies of cores and shells in sim_bugs_test use it.
#pragma once

#include <string_view>

#include "rendezvous/common/must_hold.h"

// A planted bug may break what a core promises to itself; the simulator has to find it by what follows.
#define must_hold(holds, what) static_cast<void>(holds)

namespace ddprun::sim {

inline std::string_view planted_bug;  // empty: none

inline bool is_planted(std::string_view name) { return name == planted_bug; }

}  // namespace ddprun::sim
