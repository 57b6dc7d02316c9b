// Tells whether the kernel has killed for want of memory: the oom_kill counter of the cgroup that
// the agent, and so its workers, run in (a worker that was moved into a cgroup below is counted
// there too), else of the nearest one around it that has one. Nothing else tells such a SIGKILL from
// anybody's.
//
// Owned by the WorkerGroup, event loop only. The mistake to avoid: asking twice for one dead
// worker. Every kill is told once, since each of several dead workers may have one of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::agent {

class OomWatch {
 public:
  // `root` is for tests: a tree with /proc and /sys.
  explicit OomWatch(std::string root = "");

  // When the workers of a round have started: earlier kills are none of theirs.
  void begin_round();

  // A worker failed: has the kernel killed since, once more than was asked for?
  bool take_kill();

 private:
  std::optional<std::uint64_t> read() const;

  std::string root_;
  std::string counter_file_;  // empty: not looked for yet, or there is none
  std::optional<std::uint64_t> seen_;
};

}  // namespace ddprun::agent
