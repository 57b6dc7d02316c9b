// Sets the log of ddprun/log.h up, which the Context does.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ddprun/log.h"

namespace ddprun {

namespace log {

// "debug" and so on; nothing for anything else.
std::optional<Level> level_from(std::string_view name);

}  // namespace log

struct LogOptions {
  std::string folder = {};               // of the file, made if need be; empty: no file
  std::optional<log::Level> level = {};  // else as log.h says
};

// A world of one shows no rank. Throws UsageError if the file cannot be written.
void set_up_log(int rank, int world_size, const LogOptions& options = {});

}  // namespace ddprun
