// Learning-rate rules: how the rates of an optimizer's parameter groups move from one step of a
// schedule to the next. Numbers only: nothing of Torch, no state. LRScheduler (lr_scheduler.h)
// applies one to an optimizer.
//
//   using namespace ddprun::lr_scheduler;
//   Rule rule =
//       sequential_lr({linear_lr({.start_factor = 0.1}), cosine_annealing_lr(95)}, {5});
//
// The rules, their defaults and their arithmetic are those of torch.optim.lr_scheduler (2.11): most
// are recurrences on the rate that is set now, not formulas of the step, and they are kept so,
// operation by operation, so that every rate is the same double as Python's. A rate that was changed
// by hand therefore stays changed.
//
// What can never work (a negative step, parts that do not go together) is a UsageError when the
// rule is made.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

// Of one parameter group.
struct GroupRates {
  double lr = 0;
  double base_lr = 0;                             // before any schedule: Python's initial_lr
  std::optional<double> momentum = std::nullopt;  // or Adam's beta1; none: the optimizer has none

  bool operator==(const GroupRates&) const = default;
};

namespace lr_scheduler {

// Made by the functions below. Its functions may be called by any thread.
struct Rule {
  // "cosine", "sequential(linear, cosine)": two rules of one shape can continue each other's state.
  std::string shape;
  std::string text;  // the same with its parameters, for people
  // What Python's constructor does: the rates before the first step of the optimizer.
  std::function<void(std::vector<GroupRates>& groups)> begin;
  // After the optimizer's step number `step`, counted from 1.
  std::function<void(std::int64_t step, std::vector<GroupRates>& groups)> advance;
  // In place of a step 0, when sequential_lr() goes over to it. Empty: it cannot be a part of one.
  std::function<void(std::vector<GroupRates>& groups)> take_over = nullptr;
};

// Times `gamma` every `step_size` steps.
Rule step_lr(std::int64_t step_size, double gamma = 0.1);

// Times `gamma` at each of these steps (twice at one that is named twice).
Rule multi_step_lr(std::vector<std::int64_t> milestones, double gamma = 0.1);

// Times `gamma` every step.
Rule exponential_lr(double gamma);

// From the base rate down to `eta_min` in `t_max` steps, and up again after them.
Rule cosine_annealing_lr(std::int64_t t_max, double eta_min = 0);

// From start_factor times the base rate to end_factor times it in `total_iters` steps: the usual
// warm-up.
struct LinearOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t total_iters = 5;
};
Rule linear_lr(const LinearOptions& options = {});

// Up to max_lr, then down far below the start; momentum (Adam: beta1) moves the other way. Sets the
// base rate, so the optimizer's own is not used. Throws UsageError when it is asked for more than
// total_steps steps, and for an optimizer without momentum unless cycle_momentum is off.
struct OneCycleOptions {
  std::vector<double> max_lr = {};  // one for all parameter groups, or one for each
  std::int64_t total_steps = 0;
  double pct_start = 0.3;  // the part of the steps during which the rate rises
  enum class Anneal { kCosine, kLinear } anneal_strategy = Anneal::kCosine;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // start = max_lr / div_factor
  double final_div_factor = 1e4;  // end = start / final_div_factor
  bool three_phase = false;
};
Rule one_cycle_lr(const OneCycleOptions& options);

// ChainedScheduler: every part is applied in every step, one after the other.
Rule chained(std::vector<Rule> parts);

// Part 0 until step milestones[0], then part 1, which begins at its own step 0 and from the base
// rate, and so on. Parts are plain rules: Python's class counts wrongly when they are sequences or
// chains themselves (2.11).
Rule sequential_lr(std::vector<Rule> parts, std::vector<std::int64_t> milestones);

}  // namespace lr_scheduler
}  // namespace ddprun
