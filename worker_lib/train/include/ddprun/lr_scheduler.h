// LRScheduler: moves an optimizer's learning rates (and the momentum, for one_cycle_lr) by a rule
// (lr_rules.h: step_lr, multi_step_lr, exponential_lr, cosine_annealing_lr, linear_lr, one_cycle_lr,
// chained, sequential_lr). The rates are the same doubles as those of torch.optim.lr_scheduler. The
// optimizer must outlive it; one thread; every rank makes its own, and they stay equal.
//
//   ddprun::LRScheduler schedule(optimizer, ddprun::lr_scheduler::cosine_annealing_lr(100));
//   for (...) {
//     loss.backward();
//     optimizer.step();
//     schedule.step();   // after the optimizer's; once an epoch, or once a step: as the rule counts
//   }
//
// Making one sets the rates of the first step already. One schedule per optimizer: put several
// rules into chained() or sequential_lr(). A checkpoint keeps it by register_for_checkpointing():
// the rates are not in the optimizer's part.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/lr_rules.h"
#include "ddprun/stateful.h"

namespace ddprun {

class LRScheduler : public Stateful {
 public:
  // How often Trainer calls step().
  enum class Interval { kStep, kEpoch };

  // Any optimizer whose options have a learning rate. Throws UsageError when the rule does not fit
  // it (one_cycle_lr without momentum, or with too many max_lr …).
  LRScheduler(torch::optim::Optimizer& optimizer, lr_scheduler::Rule rule);

  void step();

  // Steps made so far.
  std::int64_t steps() const { return steps_; }
  // Of each parameter group, as set in the optimizer now.
  std::vector<double> get_last_lr() const;

  // The step and each group's rates, exactly; load_state_dict() sets them in the optimizer. The
  // rule's parameters stay this program's: a log line says so when the saved ones differ. A rule of
  // another shape, or another number of groups, is a UsageError.
  std::string state_dict() const override;
  void load_state_dict(const std::string& state) override;

 private:
  std::vector<GroupRates> rates() const;
  void set_rates(const std::vector<GroupRates>& rates);

  torch::optim::Optimizer& optimizer_;
  lr_scheduler::Rule rule_;
  std::vector<double> base_lrs_;
  std::int64_t steps_ = 0;
};

}  // namespace ddprun
