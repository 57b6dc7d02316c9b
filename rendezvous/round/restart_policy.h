// Decides whether a failure allows another round, counts the restart budget, and computes the pause
// before the next round. A value of the RoundCore, which has decided why a round has ended.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

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
  int restarts = 0;        // that the budget has paid for
  int quick_failures = 0;  // in a row
  int quick_losses = 0;

  bool operator==(const RestartHistory&) const = default;
};

class RestartPolicy {
 public:
  explicit RestartPolicy(RestartRules rules, RestartHistory history = {})
      : rules_(std::move(rules)), history_(history) {}

  bool allows_retry(const WorkerFailure& failure, std::chrono::microseconds uptime) const {
    return failure.is_worth_a_retry && history_.restarts < rules_.max_restarts &&
           uptime >= rules_.min_uptime &&
           std::ranges::count(rules_.final_exit_codes, failure.status.as_shell_code()) == 0;
  }

  int restarts() const { return history_.restarts; }
  // Restarts that were spent before this policy was created.
  void already_spent(int restarts) {
    history_.restarts = std::max(history_.restarts, std::min(restarts, rules_.max_restarts));
  }

  const RestartHistory& history() const { return history_; }
  int max_restarts() const { return rules_.max_restarts; }

  // A worker is replaced in place: no pause, and the round goes on.
  void replaced() { history_.restarts += 1; }

  struct RoundEnd {
    bool is_charged = false;     // a failure that the budget pays for
    bool has_lost_node = false;  // not for a node that left
    std::chrono::microseconds uptime{};
    bool is_paid = false;  // with is_charged: by replaced()
  };
  // Records the end of a round that will be followed by another one; returns the pause before it.
  std::chrono::milliseconds round_ended(const RoundEnd& end) {
    const bool was_quick = end.uptime < rules_.quick;
    if (!was_quick) history_.quick_failures = history_.quick_losses = 0;
    std::chrono::milliseconds pause{0};
    if (end.is_charged) {
      history_.restarts += end.is_paid ? 0 : 1;
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
  RestartRules rules_;
  RestartHistory history_;
};

}  // namespace ddprun::rdzv
