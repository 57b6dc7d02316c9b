// What ddprun does when an agent starts it with kHealthRole: reads a question from stdin, says line by line what it looks
// at, and last what it has found.
#pragma once

#include "rendezvous/common/environment.h"

namespace ddprun::cli {

// Returns the exit code.
int run_health_role(const Environment& environment);

}  // namespace ddprun::cli
