// Learning-rate rules: how the rates of an optimizer's parameter groups move from one step of a
// schedule to the next. Numbers only: nothing of Torch, no state; a rule is an immutable value that
// may be shared by any thread. Schedule (schedules.h) applies one to an optimizer.
//
//   using namespace ddprun::schedules;
//   Rule rule = sequential({linear({.start_factor = 0.1, .steps = 5}), cosine(95)}, {5});
//
// The rules, their defaults and their arithmetic are those of torch.optim.lr_scheduler (2.11): most
// are recurrences on the rate that is set now, not formulas of the step, and they are kept so,
// operation by operation, so that every rate is the same double as Python's. It also means that a
// rate changed by hand stays changed, and that chained() works at all.
//
// What can never work (a negative step, parts that do not go together) is a UsageError when the
// rule is made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

namespace schedules {

class RuleKind {
 public:
  virtual ~RuleKind() = default;

  // What Python's constructor does: the rates before the first step of the optimizer.
  virtual void begin(std::vector<GroupRates>& groups) const = 0;
  // After the optimizer's step number `step`, counted from 1.
  virtual void advance(std::int64_t step, std::vector<GroupRates>& groups) const = 0;
  // "cosine", "sequential(linear, cosine)": two rules of one shape can continue each other's state.
  virtual std::string shape() const = 0;
  // The same with its parameters, for people.
  virtual std::string text() const = 0;
};

using Rule = std::shared_ptr<const RuleKind>;

// Python's StepLR: times `gamma` every `period` steps.
Rule step(std::int64_t period, double gamma = 0.1);

// MultiStepLR: times `gamma` at each of these steps (twice at one that is named twice).
Rule multi_step(std::vector<std::int64_t> milestones, double gamma = 0.1);

// ExponentialLR: times `gamma` every step.
Rule exponential(double gamma);

// CosineAnnealingLR: from the base rate down to `lowest` in `steps` steps, and up again after them.
Rule cosine(std::int64_t steps, double lowest = 0);

// LinearLR: from start_factor times the base rate to end_factor times it in `steps` steps: the
// usual warm-up.
struct LinearOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1.0;
  std::int64_t steps = 5;
};
Rule linear(const LinearOptions& options = {});

// OneCycleLR: up to max_lr, then down far below the start; momentum (Adam: beta1) moves the other
// way. Sets the base rate, so the optimizer's own is not used. Throws UsageError when it is asked
// for more than total_steps steps, and for an optimizer without momentum unless cycle_momentum is
// off.
struct OneCycleOptions {
  std::vector<double> max_lr = {};  // one for all parameter groups, or one for each
  std::int64_t total_steps = 0;
  double pct_start = 0.3;  // the part of the steps during which the rate rises
  enum class Anneal { kCosine, kLinear } anneal = Anneal::kCosine;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         // start = max_lr / div_factor
  double final_div_factor = 1e4;  // end = start / final_div_factor
  bool three_phase = false;
};
Rule one_cycle(const OneCycleOptions& options);

// ChainedScheduler: every part is applied in every step, one after the other.
Rule chained(std::vector<Rule> parts);

// SequentialLR: part 0 until step milestones[0], then part 1, which begins at its own step 0 and
// from the base rate, and so on. Parts are plain rules: Python's class counts wrongly when they are
// sequences or chains themselves (2.11).
Rule sequential(std::vector<Rule> parts, std::vector<std::int64_t> milestones);

}  // namespace schedules
}  // namespace ddprun
