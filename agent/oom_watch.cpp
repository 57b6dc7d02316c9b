#include "agent/oom_watch.h"

#include <sstream>
#include <utility>

#include "rendezvous/base/cgroup.h"
#include "rendezvous/base/file_text.h"

namespace ddprun::agent {
namespace {

// The file with the counter, of version 2 or 1; none where memory is not counted.
std::string find_counter(const std::string& root) {
  for (const std::string& folder : cgroup::folders("memory", root)) {
    for (const char* const name : {"/memory.events", "/memory.oom_control"}) {
      if (oom_kills_in(file_text(folder + name))) return folder + name;
    }
  }
  return {};
}

}  // namespace

std::optional<std::uint64_t> oom_kills_in(std::string_view counters) {
  std::istringstream words{std::string(counters)};
  std::string name;
  std::uint64_t count = 0;
  while (words >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return std::nullopt;
}

OomWatch::OomWatch(std::string root) : root_(std::move(root)) {}

void OomWatch::begin_round() {
  if (counter_file_.empty()) counter_file_ = find_counter(root_);
  seen_ = read();
}

bool OomWatch::take_kill() {
  const auto now = read();
  if (!now || !seen_ || *now <= *seen_) return false;
  ++*seen_;
  return true;
}

std::optional<std::uint64_t> OomWatch::read() const {
  return counter_file_.empty() ? std::nullopt : oom_kills_in(file_text(counter_file_));
}

}  // namespace ddprun::agent
