// The Python stacks of a worker's threads, from the worker itself: the hooks (agent/python) have told
// Python's faulthandler to write them into memory when a signal comes, which it does without Python's
// lock, within milliseconds, and without a debugger's rights. That is safe for the main thread alone,
// which gets the signal: the stacks of other threads are read while these run, and a process whose
// threads come and go may crash by it. A process that has not said so gets no signal. A process answers one
// at a time: ask() waits for kOtherLimit at most while another thread has its answer, await() as told, and
// nothing else does. Any thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// All three are in agent/python/sitecustomize.py, too. No program is known to use these signals.
inline constexpr int kStackSignal = 50;
inline constexpr int kAllStacksSignal = 51;
inline constexpr char kStackMemory[] = "ddprun-python-stacks";

class PythonStacks {
 public:
  static constexpr std::chrono::milliseconds kOtherLimit{100};

  // Nothing: that process cannot answer (no hooks, stopped, in the kernel), and was sent nothing.
  // `signal`: kStackSignal for the main thread; kAllStacksSignal for all threads of a process that may crash by it.
  static std::optional<PythonStacks> ask(pid_t pid, int signal = kStackSignal);

  PythonStacks(PythonStacks&&) = default;
  PythonStacks& operator=(PythonStacks&&) = default;
  ~PythonStacks();

  // All is written, or will never be.
  bool is_done() const;
  // Until it is done, or until then; whether it is.
  bool await(std::chrono::steady_clock::time_point until) const;
  // What is written, in faulthandler's words.
  std::string text(std::size_t bytes_max) const;

 private:
  PythonStacks(pid_t pid, int signal, rdzv::UniqueFd memory)
      : pid_(pid), signal_(signal), memory_(std::move(memory)) {}

  pid_t pid_;
  int signal_;
  rdzv::UniqueFd memory_;
};

}  // namespace ddprun::agent
