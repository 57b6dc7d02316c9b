// `ddpctl leader`: a leader without an agent, for sites where the endpoint must outlive every node.
// Blocks the calling thread until the job has ended and all nodes have been told. SIGTERM or SIGINT
// stops the job on all nodes; a second one ends the leader at once, and agents that lose it stop
// their workers.
#pragma once

#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct LeaderJob {
  Endpoint listen;    // port 0: any
  RoundConfig round;  // own_node is not used; program and user are the first node's
  KeepAlive keep_alive;
  NodeProof proof;
};

// Prints its address as one line on stdout when nodes can connect, and events on stderr. Returns
// the job's exit code, as every agent does; kExitCannotRun if it cannot listen.
int run_leader(const LeaderJob& job);

}  // namespace ddprun::rdzv
