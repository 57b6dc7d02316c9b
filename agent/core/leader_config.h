// Made from the Job by pure functions: the rules for a leader in this process, the configuration of
// the NodeCore, and what this node says of itself when it joins.
#pragma once

#include <string>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::agent {

rdzv::RoundConfig leader_config(const Job& job);
// The configuration before the leader is found: hosts_leader is false until LeaderFound.
NodeConfig node_config(const Job& job);
// `host`: this node's name; `leads_at_endpoint`: the leader is here, at the rendezvous endpoint.
rdzv::NodeHello hello_of(const Job& job, const std::string& host, bool leads_at_endpoint);
// Tells this job apart from others with the same run id: the endpoint or etcd prefix where its
// nodes find their leader, and the run id. On a single node it is `agent_id`.
std::string key_of(const Job& job, const std::string& agent_id);
// "cuda:N" of this worker, from --virtual-local-rank or CUDA_VISIBLE_DEVICES; empty: unknown.
std::string device_of(const Job& job, int local_rank);

}  // namespace ddprun::agent
