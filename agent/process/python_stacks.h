// The Python stacks of a worker's threads, from the worker itself: the hooks (agent/python) have told
// Python's faulthandler to write them into memory when a signal comes, which it does without Python's
// lock, within milliseconds, and without a debugger's rights. A process that has not said so gets no
// signal. Nothing here waits. Any thread, one at a time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// Both are in agent/python/sitecustomize.py, too. No program is known to use this signal.
inline constexpr int kStackSignal = 50;
inline constexpr char kStackMemory[] = "ddprun-python-stacks";

class PythonStacks {
 public:
  // Nothing: that process cannot answer (no hooks, stopped, in the kernel), and was sent nothing.
  static std::optional<PythonStacks> ask(pid_t pid);

  // All is written, or will never be.
  bool is_done() const;
  // What is written, in faulthandler's words.
  std::string text(std::size_t bytes_max) const;

 private:
  PythonStacks(pid_t pid, rdzv::UniqueFd memory) : pid_(pid), memory_(std::move(memory)) {}

  pid_t pid_;
  rdzv::UniqueFd memory_;
};

}  // namespace ddprun::agent
