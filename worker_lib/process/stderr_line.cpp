#include "worker_lib/process/stderr_line.h"

#include <unistd.h>

#include <mutex>
#include <string>

#include "worker_lib/process/files.h"

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

}  // namespace

// Training continues if nobody reads stderr: the result of write_all() is ignored.
void write(std::string_view line) {
  const std::scoped_lock lock(state().mutex);
  std::string text(state().live.empty() ? "" : kEraseLine);
  write_all(STDERR_FILENO, text.append(line).append(state().live));
}

void set_live(std::string_view text) {
  const std::scoped_lock lock(state().mutex);
  state().live = text;
  write_all(STDERR_FILENO, std::string(kEraseLine).append(text));
}

void finish_live() {
  const std::scoped_lock lock(state().mutex);
  if (state().live.empty()) return;
  state().live.clear();
  write_all(STDERR_FILENO, "\n");
}

}  // namespace ddprun::stderr_line
