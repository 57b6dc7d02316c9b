// Log lines of a training program, on stderr, each written whole by one write(2): lines of several
// ranks never mix within a line. From the Context on a line names its rank; the main process says
// info and above, the others warning and above. Without it: as the main process, without a rank.
//
// With ContextOptions::log_folder, or DDPRUN_LOG_DIR in the environment, every rank also writes all
// its lines from info on into a file of its own, <folder>/rank<N>.log, with the date. The file is
// appended to, a line by one write(2) again, so restarts and readers (tail -f) do no harm.
// DDPRUN_LOG_LEVEL=debug, info, warning or error: from there on, on every rank, in both places.
//
// The lines go through a logger of this library: spdlog's default logger stays the program's. Any thread.
//
//   ddprun::log::info("epoch ", epoch, ": loss ", loss);
#pragma once

#include <sstream>
#include <string>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

bool is_on(Level level);
void write(Level level, const std::string& text);

template <typename... Parts>
void at(Level level, const Parts&... parts) {
  if (!is_on(level)) return;
  std::ostringstream text;
  (text << ... << parts);
  write(level, text.str());
}

template <typename... Parts>
void debug(const Parts&... parts) {
  at(Level::kDebug, parts...);
}
template <typename... Parts>
void info(const Parts&... parts) {
  at(Level::kInfo, parts...);
}
template <typename... Parts>
void warning(const Parts&... parts) {
  at(Level::kWarning, parts...);
}
template <typename... Parts>
void error(const Parts&... parts) {
  at(Level::kError, parts...);
}

}  // namespace ddprun::log
