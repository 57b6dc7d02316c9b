// `ddpctl leader`: a leader that is no agent, for sites that want the endpoint to outlive every
// node. Blocks the calling thread until the job has ended and everybody was told. SIGTERM or SIGINT
// stops the job on all nodes; a second one ends the leader at once, and agents that lose it stop
// their workers.
#pragma once

#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct LeaderJob {
  Endpoint listen;    // port 0: any
  RoundConfig round;  // own_node is none, and the program and the user are those of the first node
  KeepAlive keep_alive;
  std::string token;  // secret: never printed; empty: none
};

// Prints the address that it listens at as one line on stdout once nodes may come, and what happens
// on stderr. Returns the job's exit code, as every agent of it does; kExitCannotRun where it cannot
// listen.
int run_leader(const LeaderJob& job);

}  // namespace ddprun::rdzv
