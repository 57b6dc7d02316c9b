// Schedule: moves an optimizer's learning rates (and the momentum, for one_cycle) by a rule
// (schedule_rules.h: step, multi_step, exponential, cosine, linear, one_cycle, chained,
// sequential). The rates are the same doubles as those of Python's torch.optim.lr_scheduler. The
// optimizer must outlive it; one thread; every rank makes its own, and they stay equal.
//
//   ddprun::Schedule schedule(optimizer, ddprun::schedules::cosine(/*steps=*/100));
//   for (...) {
//     loss.backward();
//     optimizer.step();
//     schedule.step();   // after the optimizer's; once an epoch, or once a step: as the rule counts
//   }
//
// Making one sets the rates of the first step already. One schedule per optimizer: put several
// rules into chained() or sequential().
//
// A checkpoint keeps it by Checkpointer::also_keep(): the rates are not in the optimizer's part.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ddprun/schedule_rules.h"
#include "ddprun/stateful.h"

namespace ddprun {

class Schedule : public Stateful {
 public:
  // Any optimizer whose options have a learning rate. Throws UsageError when the rule does not fit
  // it (one_cycle without momentum, as many maxima as there are parameter groups …).
  Schedule(torch::optim::Optimizer& optimizer, schedules::Rule rule);

  void step();

  // Steps made so far.
  std::int64_t steps() const { return steps_; }
  // Of each parameter group, as set in the optimizer now.
  std::vector<double> learning_rates() const;

  // The state is where it stands: the step and each group's rates, exactly; load_state() sets them
  // in the optimizer. The rule's parameters stay this program's. When they differ from those that
  // the state was saved with, a log line says so (a rule that counts steps meets other ones after a
  // change of world size). A rule of another shape, or another number of groups, is a UsageError.
  std::string save_state() const override;
  void load_state(const std::string& state) override;

 private:
  std::vector<GroupRates> rates() const;
  void set_rates(const std::vector<GroupRates>& rates);

  torch::optim::Optimizer& optimizer_;
  schedules::Rule rule_;
  std::vector<double> base_lrs_;
  std::int64_t steps_ = 0;
};

}  // namespace ddprun
