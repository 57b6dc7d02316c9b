// Decides whether a failure allows another round, counts the restart budget, and computes the pause
// before the next round. A value of the RoundCore, which has decided why a round has ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// first, 2 first, 4 first … max; nth(0) is no pause
struct Backoff {
  std::chrono::milliseconds first{0};
  std::chrono::milliseconds max{0};

  // counts from 1
  std::chrono::milliseconds nth(int n) const {
    if (n < 1) return std::chrono::milliseconds(0);
    auto pause = first;
    for (int i = 1; i < n && pause < max; ++i) pause *= 2;
    return std::min(pause, max);
  }

  bool operator==(const Backoff&) const = default;
};

struct RestartRules {
  int max_restarts = 0;
  std::chrono::milliseconds window{0};  // a restart counts for so long; 0: for ever
  // A job ends that has restarted so often in a row without a step more than any before; 0: it does not.
  int no_progress_restarts = 0;
  std::chrono::milliseconds min_uptime{0};  // a round that fails sooner is not restarted
  std::vector<int> final_exit_codes;        // of workers, as a shell reports them
  Backoff pause_after_failure;              // after consecutive failures
  std::chrono::milliseconds quick{10'000};  // rounds that end sooner count as consecutive
  // From the second quick loss in a row: the first one causes no pause.
  Backoff pause_after_quick_loss{std::chrono::seconds(1), std::chrono::seconds(60)};

  bool operator==(const RestartRules&) const = default;
};

// The counts so far; under etcd they outlive the leader.
struct RestartHistory {
  int restarts = 0;        // that the budget has paid for, and that count now
  int quick_failures = 0;  // in a row
  int quick_losses = 0;
  int without_progress = 0;          // failures in a row that came before a step more than `step`
  std::optional<std::int64_t> step;  // the greatest that a failed rank has done; none is known
  StepKind step_kind = StepKind::kProgram;  // says where `step` is from

  bool operator==(const RestartHistory&) const = default;
};

class RestartPolicy {
 public:
  // `history`: of an earlier leader, whose restarts count as if they were of this moment.
  explicit RestartPolicy(RestartRules rules, const RestartHistory& history = {}, CoreTime now = {})
      : rules_(std::move(rules)),
        history_(history),
        spent_(static_cast<std::size_t>(history.restarts), now) {}

  bool allows_retry(const WorkerFailure& failure, std::chrono::microseconds uptime,
                    CoreTime now) const {
    return restarts(now) < rules_.max_restarts && may_be_cured(failure, uptime);
  }
  // The rules, without the budget.
  bool may_be_cured(const WorkerFailure& failure, std::chrono::microseconds uptime) const {
    return failure.is_worth_a_retry && uptime >= rules_.min_uptime &&
           std::ranges::count(rules_.final_exit_codes, failure.status.as_shell_code()) == 0;
  }

  // The failure that has ended a round, a worker's own fault: before anything is decided upon it. A step that a process has
  // counted for itself, or of another kind than the greatest, says nothing; so does none, of a rank that has never had one.
  void failed(const WorkerFailure& failure) {
    const bool has_had_steps = with_steps_.contains(failure.rank);
    const bool has_step = failure.progress && failure.progress->step;
    if (has_step) with_steps_.insert(failure.rank);
    if (note_step(failure)) return;
    if (has_step ? is_comparable(*failure.progress) : has_had_steps && history_.step) {
      history_.without_progress += 1;
    }
  }
  // Any failure. Returns whether it came after a step more than those before.
  bool note_step(const WorkerFailure& failure) {
    const auto& progress = failure.progress;
    if (!progress || !progress->step || progress->step_kind == StepKind::kCounted) return false;
    if (history_.step && (!is_comparable(*progress) || *progress->step <= *history_.step)) {
      return false;
    }
    history_.step = progress->step;
    history_.step_kind = progress->step_kind;
    history_.without_progress = 0;
    return true;
  }
  // Why there is no other try although the budget allows it: a sentence; empty: there is one.
  std::string why_in_vain() const {
    if (rules_.no_progress_restarts == 0 || !history_.step ||
        history_.without_progress < rules_.no_progress_restarts) {
      return "";
    }
    return "no rank that failed had come past step " + std::to_string(*history_.step) +
           ", in spite of " + counted(history_.without_progress, "restart") +
           " (--no-progress-restarts)";
  }

  // That count now.
  int restarts(CoreTime now) const {
    return rules_.window.count() == 0
               ? static_cast<int>(spent_.size())
               : static_cast<int>(std::ranges::count_if(
                     spent_, [&](CoreTime at) { return now - at < rules_.window; }));
  }
  // All, whether they count or not.
  int restarts_in_all() const { return static_cast<int>(spent_.size()); }
  // Restarts that were spent before this policy was created.
  void already_spent(int restarts, CoreTime now) {
    const int missing = std::min(restarts, rules_.max_restarts) - this->restarts(now);
    if (missing > 0) spent_.insert(spent_.end(), static_cast<std::size_t>(missing), now);
  }

  RestartHistory history(CoreTime now) const {
    RestartHistory history = history_;
    history.restarts = restarts(now);
    return history;
  }
  int max_restarts() const { return rules_.max_restarts; }

  // A worker is replaced in place: no pause, and the round goes on.
  void replaced(CoreTime now) { spent_.push_back(now); }

  struct RoundEnd {
    bool is_charged = false;     // a failure that the budget pays for
    bool has_lost_node = false;  // not for a node that left
    std::chrono::microseconds uptime{};
    bool is_paid = false;  // with is_charged: by replaced()
  };
  // Records the end of a round that will be followed by another one; returns the pause before it.
  std::chrono::milliseconds round_ended(const RoundEnd& end, CoreTime now) {
    const bool was_quick = end.uptime < rules_.quick;
    if (!was_quick) history_.quick_failures = history_.quick_losses = 0;
    std::chrono::milliseconds pause{0};
    if (end.is_charged) {
      if (!end.is_paid) spent_.push_back(now);
      history_.quick_failures += 1;
      pause = rules_.pause_after_failure.nth(history_.quick_failures);
    }
    if (end.has_lost_node && was_quick) {
      history_.quick_losses += 1;
      pause = std::max(pause, rules_.pause_after_quick_loss.nth(history_.quick_losses - 1));
    }
    return pause;
  }

 private:
  bool is_comparable(const WorkerProgress& progress) const {
    return history_.step && progress.step_kind == history_.step_kind;
  }

  RestartRules rules_;
  RestartHistory history_;       // but for `restarts`
  std::vector<CoreTime> spent_;  // when each restart was paid
  std::set<int> with_steps_;     // ranks that have failed after a step
};

}  // namespace ddprun::rdzv
