// The nodes of the job and the place where its workers meet, as the agent gets them: the options
// under "Nodes", applied to this node. A job on one node needs no endpoint. Several nodes must
// agree on their meeting place before any of them runs, so options that cannot work are refused
// here. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/job.h"
#include "launcher/plan/rendezvous_options.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// Does not read the token, which is in a file.
Result<agent::Nodes> job_nodes(const Settings& settings, const Rendezvous& rendezvous,
                               std::vector<std::string>& warnings);

// MASTER_ADDR and MASTER_PORT, as far as they are known before a round.
Result<agent::StoreEndpoint> store_endpoint(const Settings& settings, const Rendezvous& rendezvous);

// Whether all names of this job fit into the messages to other nodes.
Result<void> check_names(const Settings& settings, const agent::Job& job);

}  // namespace ddprun::cli
