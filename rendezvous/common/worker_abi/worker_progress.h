// How far a worker is, as it last said over its link (worker_link.h): a value for reports, events,
// status and metrics. Times are distances to the moment at which the page was read, so that the
// value means the same on another machine. Any thread.
//
// The mistake to avoid: believing it. A worker writes its page itself, and may write anything.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// What a worker is doing. Numbers of the link's page: they stay.
enum class WorkerPhase : std::uint32_t {
  kUnknown = 0,     // it did not say
  kJoining = 1,     // waits for the other ranks at the start
  kRunning = 2,     // its own code, the training step among it
  kCollective = 3,  // inside of a collective call that it waits for
  kSaving = 4,      // writes a checkpoint
  kLeaving = 5,     // on its way out
};

// "running", …; "unknown" for any number that is none of them.
constexpr std::string_view name_of(WorkerPhase phase) {
  switch (phase) {
    case WorkerPhase::kUnknown:
      break;
    case WorkerPhase::kJoining:
      return "joining";
    case WorkerPhase::kRunning:
      return "running";
    case WorkerPhase::kCollective:
      return "collective";
    case WorkerPhase::kSaving:
      return "saving";
    case WorkerPhase::kLeaving:
      return "leaving";
  }
  return "unknown";
}

// A number to which the program gave the name: {"loss", 0.41}. It may be NaN or infinite.
struct NamedValue {
  std::string name;  // printable ASCII, at most 24 bytes
  double value = 0;

  bool operator==(const NamedValue&) const = default;
};

struct WorkerProgress {
  std::optional<std::int64_t> step;       // that is done; nothing: no step was reported yet
  std::int64_t total_steps = 0;           // 0: not known
  std::chrono::nanoseconds since_step{};  // from the report of `step`
  std::uint64_t collectives = 0;          // that it has begun
  WorkerPhase phase = WorkerPhase::kUnknown;
  std::chrono::nanoseconds since_phase{};  // from the beginning of `phase`
  // The newest that it gave. Not sent to the leader with a failure.
  std::vector<NamedValue> values = {};

  bool operator==(const WorkerProgress&) const = default;
};

// Six digits: "0.41", "1e-05", "nan".
inline std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", number);
  return text;
}

}  // namespace ddprun
