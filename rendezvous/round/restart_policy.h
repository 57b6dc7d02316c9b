// Whether a failed worker is worth another round, what is left of the restart budget, and how long
// the job pauses before the next round. A value of the RoundCore; all of it is arithmetic on what
// the leader has decided to be the cause of a round's end.
#pragma once

#include <chrono>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// first, 2 first, 4 first … max; the 0th is none
struct Backoff {
  std::chrono::milliseconds first{0};
  std::chrono::milliseconds max{0};

  std::chrono::milliseconds nth(int n) const;  // from 1

  bool operator==(const Backoff&) const = default;
};

struct RestartRules {
  int max_restarts = 0;
  std::chrono::milliseconds min_uptime{0};  // a round that fails sooner would only fail again
  std::vector<int> final_exit_codes;        // of workers; as a shell has them
  Backoff pause_after_failure;              // consecutive ones
  std::chrono::milliseconds quick{10'000};  // rounds that end sooner count as consecutive
  // From the second in a row: one node may always die young without holding up the others.
  Backoff pause_after_quick_loss{std::chrono::seconds(1), std::chrono::seconds(60)};

  bool operator==(const RestartRules&) const = default;
};

// What the policy knows of the past; under etcd it outlives the leader.
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

  bool allows_retry(const WorkerFailure& failure, std::chrono::microseconds uptime) const;
  int restarts() const { return history_.restarts; }
  // As somebody knows from before this policy was made.
  void already_spent(int restarts);
  const RestartHistory& history() const { return history_; }
  int max_restarts() const { return rules_.max_restarts; }

  struct RoundEnd {
    bool is_charged = false;     // a failure that the budget pays for
    bool has_lost_node = false;  // not: a node that left
    std::chrono::microseconds uptime{};
  };
  // Accounts for the end of a round after which there will be another one; returns the pause.
  std::chrono::milliseconds round_ended(const RoundEnd& end);

 private:
  RestartRules rules_;
  RestartHistory history_;
};

}  // namespace ddprun::rdzv
