// What follows from the Job, as pure functions: the rules for a leader in this process, the
// configuration of the NodeCore, what this node says of itself when it joins, and what a worker sees.
#pragma once

#include <string>
#include <vector>

#include "agent/core/node_core.h"
#include "agent/job.h"
#include "rendezvous/round/round_core.h"
#include "rendezvous/round/round_messages.h"

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

// The variables of one worker. They are torchrun 2.11's, with its values, except:
//   TORCHELASTIC_RESTART_COUNT  the round number, the same on every node (torchrun counts each
//                               node's own failures, so its value differs between nodes)
//   MASTER_ADDR                 as given or found, never a reverse-resolved name
Environment worker_environment(const Job& job, const rdzv::RoundStart& start, int local_rank,
                               const std::string& error_file);

// The program's argv, with $local_rank replaced in the user's arguments (substitute.h).
std::vector<std::string> worker_arguments(const Program& program, int local_rank);

}  // namespace ddprun::agent
