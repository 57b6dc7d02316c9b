// The agent's log: spdlog, written through the Console so that a blocked terminal cannot block the
// event loop. Any thread may log. The Supervisor makes one logger and passes it to the parts that
// log; the cores do not log.
#pragma once

#include <memory>

#include "rendezvous/common/environment.h"

namespace spdlog {
class logger;
}

namespace ddprun::agent {

class Console;

// The level is DDPRUN_LOG_LEVEL, else LOGLEVEL (torchrun's), else warning.
std::shared_ptr<spdlog::logger> make_logger(Console& console, const Environment& environment);
// Whether messages at the level "info" are logged.
bool logs_info(const Environment& environment);

}  // namespace ddprun::agent
