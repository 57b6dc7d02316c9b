// The options of `ddpctl leader`. They are ddprun's, with the same names, variables, defaults and
// meanings, so that both can get the same command line; only --listen is new. Pure, except for
// reading the token's file and asking munge.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/run_leader.h"

namespace ddprun::cli {

inline constexpr std::array kLeaderOptions{OptionId::kNnodes,         OptionId::kRdzvId,
                                           OptionId::kMaxRestarts,    OptionId::kNoProgressRestarts,
                                           OptionId::kMinUptime,      OptionId::kRestartPause,
                                           OptionId::kFinalExitCodes, OptionId::kRdzvConf,
                                           OptionId::kTokenFile,      OptionId::kNoToken};

Result<rdzv::LeaderJob> read_leader_job(const std::string& listen, const Settings& settings,
                                        bool is_in_slurm_job, std::vector<std::string>& warnings);

}  // namespace ddprun::cli
