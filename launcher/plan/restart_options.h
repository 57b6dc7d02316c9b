// When a failed group is started again: --max-restarts and the options beside it. They are options
// and not keys of --rdzv-conf, because they matter on one node too, where there is no rendezvous.
// Pure.
#pragma once

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::cli {

Result<rdzv::RestartRules> read_restart_rules(const Settings& settings);

}  // namespace ddprun::cli
