#include "agent/oom_watch.h"

#include <sstream>
#include <utility>
#include <vector>

#include "rendezvous/base/file_text.h"

namespace ddprun::agent {
namespace {

// Where the counter may be, best first. /proc/self/cgroup has a line "0::/path" for v2 and
// "4:memory:/path" for v1. Without a cgroup namespace a container is shown the host's path, which
// it does not see: its own cgroup is then the root of what is mounted.
std::vector<std::string> candidates(const std::string& own_cgroups, const std::string& root) {
  std::vector<std::string> out;
  std::istringstream lines(own_cgroups);
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (line.starts_with("0:")) {
      out.insert(out.end(), {root + path + "/memory.events", root + "/memory.events"});
    } else if (controllers.find(",memory,") != std::string::npos) {
      out.insert(out.end(), {root + "/memory" + path + "/memory.oom_control",
                             root + "/memory/memory.oom_control"});
    }
  }
  return out;
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

OomWatch::OomWatch(std::string cgroup_root, std::string own_cgroup_file)
    : cgroup_root_(std::move(cgroup_root)), own_cgroup_file_(std::move(own_cgroup_file)) {}

void OomWatch::begin_round() {
  if (counter_file_.empty()) {
    for (const auto& candidate : candidates(file_text(own_cgroup_file_), cgroup_root_)) {
      if (!oom_kills_in(file_text(candidate))) continue;
      counter_file_ = candidate;
      break;
    }
  }
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
