// When a failed group is worth another start, as --max-restarts and the options beside it say.
// Options of their own and no keys of --rdzv-conf, because they matter on one node too, where
// nobody meets anybody. Pure.
#pragma once

#include "launcher/settings.h"
#include "rendezvous/base/result.h"
#include "rendezvous/restart_policy.h"

namespace ddprun::cli {

Result<rdzv::RestartRules> read_restart_rules(const Settings& settings);

}  // namespace ddprun::cli
