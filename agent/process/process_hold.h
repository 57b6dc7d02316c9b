// What holds a process, so that it does not go on by itself: a signal that has stopped it, a debugger, the
// kernel, a frozen control group. Does not block; tests use files of their own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "rendezvous/common/worker_abi/group_calls.h"

namespace ddprun::agent {

struct ProcessHold {
  RankState state = RankState::kRuns;  // of its first thread; it may be frozen, see below
  // How often that thread has been given a processor or has given one up: if it is the same number at
  // two looks, the thread has not run meanwhile.
  std::uint64_t switches = 0;

  bool operator==(const ProcessHold&) const = default;
};
ProcessHold hold_of(pid_t pid, const std::string& proc = "/proc");

// Whether its control group is frozen, of version 2 or 1. Ask only about a process that has not run since
// the last look: others are not.
bool is_frozen(pid_t pid, const std::string& proc = "/proc",
               const std::string& groups = "/sys/fs/cgroup");

}  // namespace ddprun::agent
