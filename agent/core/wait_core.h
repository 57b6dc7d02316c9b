// Which node looks whether ranks hang, while some of them wait for others: that of node rank 0. Every node looks at its own
// workers once a second. One with a rank that has waited for longer than its patience tells the first node, which then
// asks all. So a job of N nodes sends O(N) messages a second for this, however many of them wait. Pure.
#pragma once

#include <chrono>

namespace ddprun::agent {

class WaitCore {
 public:
  using Clock = std::chrono::steady_clock;

  struct Look {
    int node_rank = 0;
    bool has_all_ranks = false;  // the workers of this node are all of the job
    bool has_waited = false;     // one of them, for longer than the patience
  };
  enum class Action {
    kNothing,     // no rank waits, as far as this node knows
    kJudgeAlone,  // what is known here is all there is
    kAskAll,
    kTellFirst,  // the first node: a rank of this one waits
  };

  Action look(Clock::time_point now, const Look& seen) const {
    if (!seen.has_waited && (seen.node_rank != 0 || now >= told_until_)) return Action::kNothing;
    if (seen.has_all_ranks) return Action::kJudgeAlone;
    return seen.node_rank == 0 ? Action::kAskAll : Action::kTellFirst;
  }
  // Another node tells this one, and tells it again a second later if it still waits.
  void told(Clock::time_point now) { told_until_ = now + kToldFor; }
  void round_began() { told_until_ = {}; }

 private:
  static constexpr std::chrono::milliseconds kToldFor{2'500};

  Clock::time_point told_until_{};
};

}  // namespace ddprun::agent
