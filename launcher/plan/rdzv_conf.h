// --rdzv-conf: more settings of the rendezvous as KEY=VALUE pairs, by torchrun's rules, and what
// the keys mean here. Pure; used by ddprun and by `ddpctl leader`.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/liveness.h"

namespace ddprun::cli {

using RdzvConf = std::map<std::string, std::string>;

// All values in the result are valid; a key that nothing uses is kept, with a warning. Quotes around
// the whole, a pair or a value, which YAML files and scripts may leave there, are removed.
Result<RdzvConf> read_conf(const ResolvedOption& option, std::vector<std::string>& warnings);

// None: the key is not there.
std::optional<bool> truth_of(const RdzvConf& conf, const std::string& key);
std::optional<std::chrono::milliseconds> seconds_of(const RdzvConf& conf, const std::string& key);
std::string text_of(const RdzvConf& conf, const std::string& key);

rdzv::KeepAlive keep_alive_of(const RdzvConf& conf);

}  // namespace ddprun::cli
