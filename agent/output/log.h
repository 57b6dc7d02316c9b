// The agent's log: spdlog, written through the Console so that a blocked terminal cannot block the
// event loop. Any thread may log. The Supervisor makes one and passes it to the parts that log; the
// cores do not log. (spdlog's own headers would cost every source that logs seconds to compile.)
#pragma once

#include <memory>
#include <string_view>

#include "rendezvous/common/environment.h"

namespace spdlog {
class logger;
}

namespace ddprun::agent {

class Console;

// A handle: copies write to the same log.
class Log {
 public:
  enum class Level { kDebug, kInfo, kWarning, kError };

  // Writes from the level that DDPRUN_LOG_LEVEL names, else LOGLEVEL (torchrun's), else warning.
  Log(Console& console, const Environment& environment);

  void debug(std::string_view text) const { write(Level::kDebug, text); }
  void warn(std::string_view text) const { write(Level::kWarning, text); }
  void error(std::string_view text) const { write(Level::kError, text); }
  void write(Level level, std::string_view text) const;
  bool writes(Level level) const;

 private:
  std::shared_ptr<spdlog::logger> logger_;
};

// Whether messages at the level "info" are logged.
bool logs_info(const Environment& environment);

}  // namespace ddprun::agent
