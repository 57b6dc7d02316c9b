// What a restart costs the user, as a value: the time from the failure, or from whatever else ended
// the round, until every rank has committed the step after it, in its four parts. Each agent counts
// the ranks of its own node. Values: copy freely, any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::agent {

// Until when the time was counted; a later one knows more.
enum class DowntimeEnd {
  kWorkersRun,  // no steps are known
  kFirstStep,   // of every rank; how many steps were repeated is not known
  kStepAfter,   // every rank has committed the step after those that were done before
};

struct Downtime {
  std::chrono::microseconds stopped{};         // until no worker was left
  std::chrono::microseconds started{};         // from then until the workers of the next round ran
  std::chrono::microseconds joined{};          // from then until every rank's first step
  std::chrono::microseconds repeated{};        // from then until the step after
  std::optional<std::int64_t> steps_repeated;  // nothing: not known
  std::optional<DowntimeEnd> until;  // nothing: it lasts, or the next failure or the end came first

  std::chrono::microseconds total() const { return stopped + started + joined + repeated; }
  bool operator==(const Downtime&) const = default;
};

// Of several restarts: what is not known of one is not known of all.
inline Downtime operator+(const Downtime& a, const Downtime& b) {
  Downtime sum{a.stopped + b.stopped,
               a.started + b.started,
               a.joined + b.joined,
               a.repeated + b.repeated,
               {},
               a.until && b.until ? std::min(a.until, b.until) : std::nullopt};
  if (a.steps_repeated && b.steps_repeated)
    sum.steps_repeated = *a.steps_repeated + *b.steps_repeated;
  return sum;
}

// Of no restart at all.
inline constexpr Downtime no_downtime() {
  Downtime none;
  none.steps_repeated = 0;
  none.until = DowntimeEnd::kStepAfter;
  return none;
}

// A share as a percentage, never rounded up: 100 % is without any downtime.
inline int in_permille(double share) { return static_cast<int>(1000 * share); }
// "99.9 %"
inline std::string percent_text(double share) {
  const int permille = in_permille(share);
  return std::to_string(permille / 10) + "." + std::to_string(permille % 10) + " %";
}

}  // namespace ddprun::agent
