// What ddprun and `ddpctl leader` read alike: --rdzv-conf, more settings of the rendezvous as
// KEY=VALUE pairs, by torchrun's rules, and what the keys mean here; --token-file, which is a key
// too; the restarts. Pure but for read_proof(); nothing here prints the secret.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "launcher/settings/settings.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/restart_policy.h"

namespace ddprun::cli {

using RdzvConf = Environment;  // its texts: value_or_empty()

// All values in the result are valid; a key that nothing uses is kept, with a warning. Quotes around
// the whole, a pair or a value, which YAML files and scripts may leave there, are removed.
Result<RdzvConf> read_conf(const ResolvedOption& option, std::vector<std::string>& warnings);

// None: the key is not there.
std::optional<bool> truth_of(const RdzvConf& conf, const std::string& key);
std::optional<std::chrono::milliseconds> seconds_of(const RdzvConf& conf, const std::string& key);

rdzv::KeepAlive keep_alive_of(const RdzvConf& conf);

struct TokenFile {
  std::string path;  // empty: there is none
  OptionId named_by = OptionId::kTokenFile;
};

// If --token-file and the key token_file both name one, the one whose origin has priority.
TokenFile token_file(const Settings& settings, const RdzvConf& conf);

// How the nodes of this job prove that they belong to it: by the token's file if there is one, else
// by munge if this is in a job of Slurm and munge works here, else not at all. An Error if the file
// cannot be used; why munge cannot be used becomes a note.
Result<rdzv::NodeProof> read_proof(const Settings& settings, const RdzvConf& conf,
                                   bool is_in_slurm_job, const std::string& munge_library,
                                   std::vector<std::string>& notes);

// --max-restarts and the options beside it. They are options and not keys of --rdzv-conf, because
// they matter on one node too, where there is no rendezvous.
Result<rdzv::RestartRules> read_restart_rules(const Settings& settings);

}  // namespace ddprun::cli
