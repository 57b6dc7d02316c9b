#include "worker_lib/process/stderr_line.h"

#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>

namespace ddprun::stderr_line {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";

struct State {
  std::mutex mutex;
  std::string live;
};

State& state() {
  static State* const kept = new State;  // never destroyed: the last lines come from destructors
  return *kept;
}

void write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads stderr: training goes on
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

void write(std::string_view line) {
  const std::scoped_lock lock(state().mutex);
  if (state().live.empty()) return write_all(line);
  std::string text(kEraseLine);
  text.append(line).append(state().live);
  write_all(text);
}

void set_live(std::string_view text) {
  const std::scoped_lock lock(state().mutex);
  state().live = text;
  write_all(std::string(kEraseLine).append(text));
}

void finish_live() {
  const std::scoped_lock lock(state().mutex);
  if (state().live.empty()) return;
  state().live.clear();
  write_all("\n");
}

}  // namespace ddprun::stderr_line
