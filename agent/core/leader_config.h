// What an agent tells the leader of its job: by which rules to lead, if it does so itself, and who
// this node is. Pure functions of the Job.
#pragma once

#include <string>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::agent {

rdzv::RoundConfig leader_config(const Job& job);
// As long as the leader is not found.
NodeConfig node_config(const Job& job);
// `host`: this node's name; `leads_at_endpoint`: the leader is here, at the endpoint.
rdzv::NodeHello hello_of(const Job& job, const std::string& host, bool leads_at_endpoint);
// What names this job among those with the same id: how its nodes find their leader. `agent_id`:
// of the agent, for a job that has no other.
std::string key_of(const Job& job, const std::string& agent_id);
// The device that this worker is meant for, as far as the environment says; empty: it does not.
std::string device_of(const Job& job, int local_rank);

}  // namespace ddprun::agent
