// When a failed group is worth another start, as --max-restarts and the options beside it say.
// Options of their own and no keys of --rdzv-conf, because they matter on one node too, where
// nobody meets anybody. Pure.
#pragma once

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::cli {

Result<rdzv::RestartRules> read_restart_rules(const Settings& settings);

}  // namespace ddprun::cli
