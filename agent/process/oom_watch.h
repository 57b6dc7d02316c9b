// Tells whether the kernel's OOM killer killed a worker, which an exit status cannot tell from any
// other SIGKILL: reads the oom_kill counter of the agent's cgroup, or of its nearest ancestor that
// has one. Owned by the WorkerGroup, event loop only. Every kill is reported once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::agent {

class OomWatch {
 public:
  // `root` is for tests: a folder that contains /proc and /sys.
  explicit OomWatch(std::string root = "");

  // Call it when the workers of a round have started: earlier kills are not counted for them.
  void begin_round();

  // Call it when a worker failed. True if there is a kill that was not reported yet; reports it.
  bool take_kill();

 private:
  std::string root_;
  std::string counter_file_;  // empty: not found, or not looked for yet
  std::optional<std::uint64_t> seen_;
};

}  // namespace ddprun::agent
