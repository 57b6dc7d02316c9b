// The exit code of this agent. Pure.
#pragma once

#include "agent/job.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// The outcome's own code, or 1 for any failure where the user asked for torchrun's codes.
inline int exit_code_of(const Job& job, const rdzv::JobOutcome& outcome) {
  return outcome.exit_code != 0 && job.exit_code_as_torchrun ? 1 : outcome.exit_code;
}

}  // namespace ddprun::agent
