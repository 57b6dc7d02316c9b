// The --config file: TOML with option names as keys, and the program with its arguments. A key that
// is neither, or has a type that it cannot have, is an Error that names file and line. Only
// config_file.cpp includes the TOML library.
//
//   nproc-per-node = 2                       # dashes or underscores
//   standalone = true
//   tee = { 0 = 3, 1 = 2 }                   # or "0:3,1:2"
//   signals-to-handle = ["SIGTERM", "SIGINT"]
//   rdzv-conf = { join_timeout = 600 }
//   program = "train.py"                     # both unless the command line names a program
//   arguments = ["--lr", 0.1]
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct ConfigFile {
  FileValues values;
  std::vector<std::string> command;  // the program and its arguments; empty: none
};

// `name` is the file's name, for messages and origins.
Result<ConfigFile> parse_config(std::string_view text, const std::string& name);

// Reads and parses the file that --config or DDPRUN_CONFIG names; no values when none is named.
Result<ConfigFile> read_config(const ResolvedOption& config);

}  // namespace ddprun::cli
