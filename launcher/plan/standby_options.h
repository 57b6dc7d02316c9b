// What --standby and --preload ask for, and whether this job can have it. Looks at /dev, at how many
// processors there are, and at the text of a script.
#pragma once

#include "agent/job.h"
#include "launcher/machine/placement.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// `job` is complete but for its standbys.
Result<agent::StandbySpec> read_standbys(const Settings& settings, const agent::Job& job,
                                         const agent::Machine& machine);

}  // namespace ddprun::cli
