// A worker's progress, as it last reported over its link (worker_link.h): a value for reports,
// events, status and metrics. Times are durations before the moment at which the page was read, so
// that the value means the same on another machine. Any thread.
//
// Do not trust these values: the worker writes its page itself and may write anything.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// What a worker is doing. The numbers are part of the link's layout: do not change them.
enum class WorkerPhase : std::uint32_t {
  kUnknown = 0,     // it did not say
  kJoining = 1,     // waits for the other ranks at the start
  kRunning = 2,     // its own code, such as the training step
  kCollective = 3,  // waits in a collective call
  kSaving = 4,      // writes a checkpoint
  kLeaving = 5,     // is about to exit
};

// "running", …; "unknown" for any other number.
constexpr std::string_view name_of(WorkerPhase phase) {
  constexpr std::array<std::string_view, 6> kNames{"unknown",    "joining", "running",
                                                   "collective", "saving",  "leaving"};
  const auto number = static_cast<std::size_t>(phase);
  return kNames[number < kNames.size() ? number : 0];
}

// Where a step's number is from. The numbers are part of the link's layout: do not change them.
enum class StepKind : std::uint32_t {
  kProgram = 0,    // the program reports it: the step of the whole training
  kOptimizer = 1,  // the optimizer's state has it, which a checkpoint brings back
  kCounted =
      2,  // counted from 1 in each process, or it has gone back: only differences mean something
};

// A number that the program has named: {"loss", 0.41}. It may be NaN or infinite.
struct NamedValue {
  std::string name;  // printable ASCII, at most 24 bytes
  double value = 0;

  bool operator==(const NamedValue&) const = default;
};

struct WorkerProgress {
  std::optional<std::int64_t> step;  // the last completed one; nullopt: none was reported yet
  std::int64_t total_steps = 0;      // 0: not known
  StepKind step_kind = StepKind::kProgram;
  std::chrono::nanoseconds since_step{};  // since the report of `step`
  std::uint64_t collectives = 0;          // begun so far
  WorkerPhase phase = WorkerPhase::kUnknown;
  std::chrono::nanoseconds since_phase{};  // since the beginning of `phase`
  // The newest ones. Not sent to the leader with a failure.
  std::vector<NamedValue> values = {};

  bool operator==(const WorkerProgress&) const = default;
};

// The moments of a worker's process that end an outage, by the steady clock of its host. Nothing:
// it has not come, or the worker does not tell.
struct StepMarks {
  StepKind step_kind = StepKind::kProgram;
  std::int64_t first_step = 0;
  std::optional<std::chrono::steady_clock::time_point> first_step_at;
  std::optional<std::chrono::steady_clock::time_point> wanted_step_at;

  bool operator==(const StepMarks&) const = default;
};

// Six digits: "0.41", "1e-05", "nan".
inline std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

}  // namespace ddprun
