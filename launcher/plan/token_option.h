// --token-file, or the key token_file of --rdzv-conf: which file it is, and what it holds. Only
// read_token() touches the file; nothing here ever prints the secret.
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

// Where both name one, that of the origin that counts more.
TokenFile token_file(const Settings& settings, const RdzvConf& conf);

// Empty where there is no file; a file that is no good is a sentence for the user.
Result<std::string> read_token(const Settings& settings, const RdzvConf& conf);

}  // namespace ddprun::cli
