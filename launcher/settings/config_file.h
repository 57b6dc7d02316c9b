// The --config file: TOML with option names as keys, and nothing else. A key that is no option, or
// has a type that its option cannot have, is an Error that names file and line. Only
// config_file.cpp includes the TOML library.
//
//   nproc-per-node = 2                       # dashes or underscores
//   standalone = true
//   tee = { 0 = 3, 1 = 2 }                   # or "0:3,1:2"
//   signals-to-handle = ["SIGTERM", "SIGINT"]
//   rdzv-conf = { join_timeout = 600 }
#pragma once

#include <string>
#include <string_view>

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// `name` is the file's name, for messages and origins.
Result<FileValues> parse_config(std::string_view text, const std::string& name);

// Reads and parses the file that --config or DDPRUN_CONFIG names; no values when none is named.
Result<FileValues> read_config(const ResolvedOption& config);

}  // namespace ddprun::cli
