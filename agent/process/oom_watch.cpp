#include "agent/process/oom_watch.h"

#include <utility>

#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"

namespace ddprun::agent {
namespace {

// From memory.events (cgroup v2) or memory.oom_control (v1); none: there is no such file.
std::optional<std::uint64_t> oom_kills_in(const std::string& file) {
  return cgroup::field(file_text(file), "oom_kill");
}

// The file with the counter; empty if there is no memory controller.
std::string find_counter(const std::string& root) {
  for (const std::string& folder : cgroup::folders("memory", root)) {
    for (const char* const name : {"/memory.events", "/memory.oom_control"}) {
      if (oom_kills_in(folder + name)) return folder + name;
    }
  }
  return {};
}

}  // namespace

OomWatch::OomWatch(std::string root) : root_(std::move(root)) {}

void OomWatch::begin_round() {
  if (counter_file_.empty()) counter_file_ = find_counter(root_);
  seen_ = oom_kills_in(counter_file_);
}

bool OomWatch::take_kill() {
  const auto now = oom_kills_in(counter_file_);
  if (!now || !seen_ || *now <= *seen_) return false;
  ++*seen_;
  return true;
}

}  // namespace ddprun::agent
