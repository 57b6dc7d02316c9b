// --token-file, or the key token_file of --rdzv-conf: the path and the content of the file. Only
// read_token() reads the file; nothing here prints the secret.
#pragma once

#include <string>

#include "launcher/plan/rdzv_conf.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct TokenFile {
  std::string path;  // empty: there is none
  OptionId named_by = OptionId::kTokenFile;
};

// If both name a file, the one whose origin has priority.
TokenFile token_file(const Settings& settings, const RdzvConf& conf);

// Empty if there is no file. An Error if the file cannot be used.
Result<std::string> read_token(const Settings& settings, const RdzvConf& conf);

}  // namespace ddprun::cli
