// Tells whether the kernel's OOM killer killed a worker, which an exit status cannot tell from any
// other SIGKILL: reads the oom_kill counter of the agent's cgroup, or of its nearest ancestor that
// has one. Owned by Workers, event loop only. Every kill is reported once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"

namespace ddprun::agent {

class OomWatch {
 public:
  // `root` is for tests: a folder that contains /sys.
  explicit OomWatch(std::string root = "") : root_(std::move(root)) {}

  // Call it when the workers of a round have started: earlier kills are not counted for them. The agent's groups are
  // those of cgroup::own_groups().
  void begin_round(const std::string& own_groups) {
    seen_ = counter_file_.empty() ? find_counter(own_groups) : oom_kills_in(counter_file_);
  }

  // Call it when a worker failed. True if there is a kill that was not reported yet; reports it.
  bool take_kill() {
    const auto now = oom_kills_in(counter_file_);
    if (!now || !seen_ || *now <= *seen_) return false;
    ++*seen_;
    return true;
  }

 private:
  // From memory.events (cgroup v2) or memory.oom_control (v1); none: there is no such file.
  static std::optional<std::uint64_t> oom_kills_in(const std::string& file) {
    return cgroup::field(file_text(file), "oom_kill");
  }

  // Returns what it says.
  std::optional<std::uint64_t> find_counter(const std::string& own_groups) {
    for (const std::string& folder : cgroup::folders("memory", root_, own_groups)) {
      for (const char* const name : {"/memory.events", "/memory.oom_control"}) {
        counter_file_ = folder + name;
        if (const auto kills = oom_kills_in(counter_file_)) return kills;
      }
    }
    counter_file_.clear();
    return std::nullopt;
  }

  std::string root_;
  std::string counter_file_;  // empty: not found, or not looked for yet
  std::optional<std::uint64_t> seen_;
};

}  // namespace ddprun::agent
