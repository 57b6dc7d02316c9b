// The nodes of the job and the place where its workers meet, as the agent is given them: what the
// options under "Nodes" come to for this node. One node needs neither endpoint nor anybody; several
// have to agree on where they meet before any of them runs, so what cannot work is refused here.
// Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/job.h"
#include "launcher/plan/rendezvous_options.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// Without the token, which is in a file.
Result<agent::Nodes> job_nodes(const Settings& settings, const Rendezvous& rendezvous,
                               std::vector<std::string>& warnings);

// MASTER_ADDR and MASTER_PORT, as far as they are known before a round.
Result<agent::StoreEndpoint> store_endpoint(const Settings& settings, const Rendezvous& rendezvous);

// Whether every other node can be told this job's names.
Result<void> check_names(const Settings& settings, const agent::Job& job);

}  // namespace ddprun::cli
