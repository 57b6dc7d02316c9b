// The agent's end of the connection to a leader in another process: connects, joins, sends
// heartbeats, resumes a broken connection, and reports once when the leader is gone. Until the
// leader is first reached, its name is looked up and its addresses are tried repeatedly up to the
// join time limit: the nodes of a job start in any order, and a name may become known late.
// Everything happens on the transport's thread; names are looked up on another one.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"

namespace ddprun::rdzv {

struct RoundClientOptions {
  Endpoint leader;
  KeepAlive keep_alive;
  std::chrono::milliseconds join_timeout{600'000};
  NodeProof proof{};
};

std::unique_ptr<Leader> make_round_client(std::shared_ptr<Transport> transport,
                                          RoundClientOptions options, LeaderEvents events);

}  // namespace ddprun::rdzv
