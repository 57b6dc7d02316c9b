#include "rendezvous/round/restart_policy.h"

#include <algorithm>

namespace ddprun::rdzv {

std::chrono::milliseconds Backoff::nth(int n) const {
  if (n < 1) return std::chrono::milliseconds(0);
  auto pause = first;
  for (int i = 1; i < n && pause < max; ++i) pause *= 2;
  return std::min(pause, max);
}

bool RestartPolicy::allows_retry(const WorkerFailure& failure,
                                 std::chrono::microseconds uptime) const {
  return failure.is_worth_a_retry && history_.restarts < rules_.max_restarts &&
         uptime >= rules_.min_uptime &&
         std::ranges::count(rules_.final_exit_codes, failure.status.as_shell_code()) == 0;
}

void RestartPolicy::already_spent(int restarts) {
  history_.restarts = std::max(history_.restarts, std::min(restarts, rules_.max_restarts));
}

std::chrono::milliseconds RestartPolicy::round_ended(const RoundEnd& end) {
  const bool was_quick = end.uptime < rules_.quick;
  if (!was_quick) history_.quick_failures = history_.quick_losses = 0;
  std::chrono::milliseconds pause{0};
  if (end.is_charged) {
    history_.restarts += 1;
    history_.quick_failures += 1;
    pause = rules_.pause_after_failure.nth(history_.quick_failures);
  }
  if (end.has_lost_node && was_quick) {
    history_.quick_losses += 1;
    pause = std::max(pause, rules_.pause_after_quick_loss.nth(history_.quick_losses - 1));
  }
  return pause;
}

}  // namespace ddprun::rdzv
