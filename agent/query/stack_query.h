// Questions, and answers about what the threads of workers are doing (ddpctl stacks): values, their JSON,
// and how the output of /proc and of debuggers becomes such values. Pure.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct StackQuery {
  std::vector<int> ranks = {};    // empty: all
  std::vector<int> without = {};  // none of these
  bool is_brief = false;  // the innermost frames of the main threads, for a report of all ranks
  bool has_all_threads = false;  // also where Python itself answers
  bool operator==(const StackQuery&) const = default;
};
std::string to_json(const StackQuery& question);
Result<StackQuery> stack_query_from(std::string_view json);

// Threads of one process with the same stack.
struct ThreadStack {
  std::string names;  // different ones, "gloo, python"; empty where the source has none
  int threads = 1;
  bool is_main = false;  // the first thread of the process is one of them
  std::string stack;     // a line per frame, the innermost first: "wait (threading.py:324)\n"
  bool operator==(const ThreadStack&) const = default;
};

// Of one worker, or, with rank -1, why a node has no answer.
struct WorkerStacks {
  int rank = -1;
  std::string host;
  std::int64_t pid = 0;              // of the process that is meant; 0: the worker does not run
  std::string state;                 // of its main thread: "T (stopped)"; empty: not known
  std::string source;                // "py-spy", "eu-stack", "gdb"; "/proc": none of them
  std::vector<ThreadStack> threads;  // the main one first
  std::string trouble;               // what is missing, and what to do about it
  bool operator==(const WorkerStacks&) const = default;
};
std::string to_json(const std::vector<WorkerStacks>& stacks);
Result<std::vector<WorkerStacks>> worker_stacks_from(std::string_view json);

// What `py-spy dump`, `eu-stack`, gdb's `thread apply all backtrace` or stacks_of()
// (agent/process/process_stacks.h) have written about a process. Anything else has no threads. Names
// that the text lacks are taken from what stacks_of() has written.
std::vector<ThreadStack> threads_in(std::string_view text, std::int64_t pid,
                                    std::string_view of_kernel = {});

// The main thread's frames that are the program's own, not those of the interpreter's library and of packages, out of what
// Python's faulthandler has written; a line for each, the innermost first, at most kProgramFramesMax.
inline constexpr std::size_t kProgramFramesMax = 8;
std::string program_frames_in(std::string_view text);

// How long a node takes to answer, at most. (gdb may need that for a process with LibTorch.)
inline constexpr std::chrono::seconds kStackLimit{6};

// What an answer to a brief question has.
void make_brief(WorkerStacks& stacks);

// Removes what does not fit: frames far from the innermost ones, then threads other than the main one.
void shorten(WorkerStacks& stacks, std::size_t bytes_max);

}  // namespace ddprun::agent
