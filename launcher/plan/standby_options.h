// What --standby and --preload ask for, and whether this job can have it. Looks at /dev only.
#pragma once

#include <string>

#include "agent/job.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// `job` is complete but for its standbys. `root`: "" is the machine itself; tests use a folder.
Result<agent::StandbySpec> read_standbys(const Settings& settings, const agent::Job& job,
                                         const std::string& root);

}  // namespace ddprun::cli
