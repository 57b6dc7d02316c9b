#include "rendezvous/restart_policy.h"

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
  return failure.is_worth_a_retry && restarts_ < rules_.max_restarts &&
         uptime >= rules_.min_uptime &&
         std::ranges::count(rules_.final_exit_codes, failure.status.as_shell_code()) == 0;
}

std::chrono::milliseconds RestartPolicy::round_ended(const RoundEnd& end) {
  const bool was_quick = end.uptime < rules_.quick;
  if (!was_quick) quick_failures_ = quick_losses_ = 0;
  std::chrono::milliseconds pause{0};
  if (end.is_charged) {
    restarts_ += 1;
    quick_failures_ += 1;
    pause = rules_.pause_after_failure.nth(quick_failures_);
  }
  if (end.has_lost_node && was_quick) {
    quick_losses_ += 1;
    pause = std::max(pause, rules_.pause_after_quick_loss.nth(quick_losses_ - 1));
  }
  return pause;
}

}  // namespace ddprun::rdzv
