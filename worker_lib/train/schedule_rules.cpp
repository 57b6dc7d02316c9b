#include "ddprun/schedule_rules.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <sstream>
#include <utility>

#include "ddprun/error.h"

// Built without fused multiply-add (CMakeLists.txt): Python rounds after every operation.
namespace ddprun::schedules {
namespace {

using Groups = std::vector<GroupRates>;

constexpr double kPi = std::numbers::pi;

template <typename... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

void require(bool is_so, const std::string& otherwise) {
  if (!is_so) throw UsageError(otherwise);
}

// A rule that treats every group alike, by its rate now and its base rate.
class PlainRule : public RuleKind {
 public:
  void begin(Groups& groups) const final {
    for (GroupRates& group : groups) group.lr = begin_lr(group.lr);
  }
  void advance(std::int64_t step, Groups& groups) const final {
    for (GroupRates& group : groups) group.lr = next_lr(step, group.lr, group.base_lr);
  }
  // When sequential() hands over to this rule, in place of its step 0.
  void take_over(Groups& groups) const {
    for (GroupRates& group : groups) group.lr = lr_at_zero(group.base_lr);
  }

 protected:
  virtual double begin_lr(double lr) const { return lr; }
  virtual double next_lr(std::int64_t step, double lr, double base) const = 0;
  // Python's closed form of step 0.
  virtual double lr_at_zero(double base) const { return base; }
};

class StepRule : public PlainRule {
 public:
  StepRule(std::int64_t period, double gamma) : period_(period), gamma_(gamma) {}
  double next_lr(std::int64_t step, double lr, double) const override {
    return step % period_ == 0 ? lr * gamma_ : lr;
  }
  std::string shape() const override { return "step"; }
  std::string text() const override { return text_of("step(", period_, ", ", gamma_, ")"); }

 private:
  std::int64_t period_;
  double gamma_;
};

class MultiStepRule : public PlainRule {
 public:
  MultiStepRule(std::vector<std::int64_t> milestones, double gamma)
      : milestones_(std::move(milestones)), gamma_(gamma) {}
  // Python's constructor looks for milestone 0 too.
  double begin_lr(double lr) const override { return scaled(0, lr); }
  double next_lr(std::int64_t step, double lr, double) const override { return scaled(step, lr); }
  double lr_at_zero(double base) const override { return scaled(0, base); }
  std::string shape() const override { return "multi_step"; }
  std::string text() const override {
    std::string list;
    for (const std::int64_t milestone : milestones_) list += std::to_string(milestone) + " ";
    if (!list.empty()) list.pop_back();
    return text_of("multi_step({", list, "}, ", gamma_, ")");
  }

 private:
  double scaled(std::int64_t step, double lr) const {
    const auto times = std::count(milestones_.begin(), milestones_.end(), step);
    return times == 0 ? lr : lr * std::pow(gamma_, static_cast<double>(times));
  }

  std::vector<std::int64_t> milestones_;
  double gamma_;
};

class ExponentialRule : public PlainRule {
 public:
  explicit ExponentialRule(double gamma) : gamma_(gamma) {}
  double next_lr(std::int64_t, double lr, double) const override { return lr * gamma_; }
  std::string shape() const override { return "exponential"; }
  std::string text() const override { return text_of("exponential(", gamma_, ")"); }

 private:
  double gamma_;
};

class CosineRule : public PlainRule {
 public:
  CosineRule(std::int64_t steps, double lowest) : steps_(steps), lowest_(lowest) {}
  double next_lr(std::int64_t step, double lr, double base) const override {
    const auto t = static_cast<double>(step);
    const auto whole = static_cast<double>(steps_);
    // At the bottom the ratio below would divide by zero.
    if ((step - 1 - steps_) % (2 * steps_) == 0) {
      return lr + (base - lowest_) * (1 - std::cos(kPi / whole)) / 2;
    }
    return (1 + std::cos(kPi * t / whole)) / (1 + std::cos(kPi * (t - 1) / whole)) *
               (lr - lowest_) +
           lowest_;
  }
  double lr_at_zero(double base) const override {
    return lowest_ + (base - lowest_) * (1 + std::cos(0.0)) / 2;
  }
  std::string shape() const override { return "cosine"; }
  std::string text() const override { return text_of("cosine(", steps_, ", ", lowest_, ")"); }

 private:
  std::int64_t steps_;
  double lowest_;
};

class LinearRule : public PlainRule {
 public:
  explicit LinearRule(const LinearOptions& options) : options_(options) {}
  double begin_lr(double lr) const override { return lr * options_.start_factor; }
  double next_lr(std::int64_t step, double lr, double) const override {
    if (step > options_.steps) return lr;
    const double rise = options_.end_factor - options_.start_factor;
    return lr * (1.0 + rise / (static_cast<double>(options_.steps) * options_.start_factor +
                               static_cast<double>(step - 1) * rise));
  }
  double lr_at_zero(double base) const override { return base * options_.start_factor; }
  std::string shape() const override { return "linear"; }
  std::string text() const override {
    return text_of("linear(", options_.start_factor, " to ", options_.end_factor, " in ",
                   options_.steps, ")");
  }

 private:
  LinearOptions options_;
};

class OneCycleRule : public RuleKind {
 public:
  explicit OneCycleRule(OneCycleOptions options) : options_(std::move(options)) {
    using enum Level;
    const auto total = static_cast<double>(options_.total_steps);
    const double top = options_.pct_start * total - 1;
    phases_.push_back({top, kInitial, kMax, kMax, kInitial});
    if (options_.three_phase) {
      const double back = 2 * options_.pct_start * total - 2;
      phases_.push_back({back, kMax, kInitial, kInitial, kMax});
      phases_.push_back({total - 1, kInitial, kMin, kMax, kMax});
    } else {
      phases_.push_back({total - 1, kMax, kMin, kInitial, kMax});
    }
  }

  void begin(Groups& groups) const override {
    if (options_.max_lr.size() != 1 && options_.max_lr.size() != groups.size()) {
      throw UsageError(text_of("one_cycle was given ", options_.max_lr.size(),
                               " values of max_lr for ", groups.size(),
                               " parameter groups; give one, or one for each"));
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (options_.cycle_momentum && !groups[i].momentum) {
        throw UsageError(
            "one_cycle moves the momentum, and this optimizer has neither momentum nor betas: set "
            "cycle_momentum = false");
      }
      groups[i].base_lr = max_lr(i) / options_.div_factor;
    }
    advance(0, groups);
  }

  void advance(std::int64_t step, Groups& groups) const override {
    if (step > options_.total_steps) {
      throw UsageError(text_of("one_cycle was made for ", options_.total_steps,
                               " steps and is asked for step ", step,
                               "; give it the number of steps of the whole training"));
    }
    const auto t = static_cast<double>(step);
    double start = 0;
    std::size_t phase = 0;
    while (phase + 1 < phases_.size() && t > phases_[phase].end) start = phases_[phase++].end;
    const Phase& now = phases_[phase];
    const double part = (t - start) / (now.end - start);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      GroupRates& group = groups[i];
      group.lr = between(lr_of(now.from_lr, group, i), lr_of(now.to_lr, group, i), part);
      if (options_.cycle_momentum) {
        group.momentum =
            between(momentum_of(now.from_momentum), momentum_of(now.to_momentum), part);
      }
    }
  }

  std::string shape() const override { return "one_cycle"; }
  std::string text() const override {
    std::string list;
    for (const double max : options_.max_lr) list += text_of(max, " ");
    return text_of("one_cycle(max_lr ", list, "in ", options_.total_steps, ", pct_start ",
                   options_.pct_start, ", momentum ", options_.base_momentum, " to ",
                   options_.max_momentum, ", div_factor ", options_.div_factor, " and ",
                   options_.final_div_factor, options_.three_phase ? ", three phases" : "", ")");
  }

 private:
  // Of the rate: base, max, min. Of the momentum: base (kInitial) and max.
  enum class Level { kInitial, kMax, kMin };
  struct Phase {
    double end;  // the last step of the phase; not always a whole number
    Level from_lr, to_lr, from_momentum, to_momentum;
  };

  double max_lr(std::size_t group) const {
    return options_.max_lr[options_.max_lr.size() == 1 ? 0 : group];
  }
  double lr_of(Level level, const GroupRates& group, std::size_t i) const {
    switch (level) {
      case Level::kInitial:
        return group.base_lr;
      case Level::kMax:
        return max_lr(i);
      case Level::kMin:
        return group.base_lr / options_.final_div_factor;
    }
    return 0;
  }
  double momentum_of(Level level) const {
    return level == Level::kMax ? options_.max_momentum : options_.base_momentum;
  }
  double between(double from, double to, double part) const {
    if (options_.anneal == OneCycleOptions::Anneal::kLinear) return (to - from) * part + from;
    return to + (from - to) / 2.0 * (std::cos(kPi * part) + 1);
  }

  OneCycleOptions options_;
  std::vector<Phase> phases_;
};

template <typename RulePointer>
std::string joined(const std::vector<RulePointer>& parts, std::string (RuleKind::*name)() const) {
  std::string all;
  for (const auto& part : parts) all += (all.empty() ? "" : ", ") + ((*part).*name)();
  return all;
}

class ChainedRule : public RuleKind {
 public:
  explicit ChainedRule(std::vector<Rule> parts) : parts_(std::move(parts)) {}
  void begin(Groups& groups) const override {
    for (const Rule& part : parts_) part->begin(groups);
  }
  void advance(std::int64_t step, Groups& groups) const override {
    for (const Rule& part : parts_) part->advance(step, groups);
  }
  std::string shape() const override { return "chained(" + joined(parts_, &RuleKind::shape) + ")"; }
  std::string text() const override { return "chained(" + joined(parts_, &RuleKind::text) + ")"; }

 private:
  std::vector<Rule> parts_;
};

class SequentialRule : public RuleKind {
 public:
  using Part = std::shared_ptr<const PlainRule>;

  SequentialRule(std::vector<Part> parts, std::vector<std::int64_t> milestones)
      : parts_(std::move(parts)), milestones_(std::move(milestones)) {}
  void begin(Groups& groups) const override {
    for (GroupRates& group : groups) group.lr = group.base_lr;
    parts_.front()->begin(groups);
  }
  void advance(std::int64_t step, Groups& groups) const override {
    const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), step);
    const PlainRule& part = *parts_[static_cast<std::size_t>(next - milestones_.begin())];
    const std::int64_t begun = next == milestones_.begin() ? 0 : *(next - 1);
    if (begun > 0 && begun == step) {
      part.take_over(groups);
    } else {
      part.advance(step - begun, groups);
    }
  }
  std::string shape() const override {
    return "sequential(" + joined(parts_, &RuleKind::shape) + ")";
  }
  std::string text() const override {
    std::string list;
    for (const std::int64_t milestone : milestones_) list += ", " + std::to_string(milestone);
    return "sequential(" + joined(parts_, &RuleKind::text) + list + ")";
  }

 private:
  std::vector<Part> parts_;
  std::vector<std::int64_t> milestones_;
};

}  // namespace

Rule step(std::int64_t period, double gamma) {
  require(period > 0, text_of("step() needs a period of at least 1, not ", period));
  return std::make_shared<StepRule>(period, gamma);
}

Rule multi_step(std::vector<std::int64_t> milestones, double gamma) {
  require(std::all_of(milestones.begin(), milestones.end(), [](auto at) { return at >= 0; }),
          "multi_step() counts from 0: a milestone is negative");
  return std::make_shared<MultiStepRule>(std::move(milestones), gamma);
}

Rule exponential(double gamma) { return std::make_shared<ExponentialRule>(gamma); }

Rule cosine(std::int64_t steps, double lowest) {
  require(steps > 0, text_of("cosine() needs at least one step, not ", steps));
  return std::make_shared<CosineRule>(steps, lowest);
}

Rule linear(const LinearOptions& options) {
  require(options.start_factor > 0 && options.start_factor <= 1,
          text_of("linear(): start_factor is ", options.start_factor,
                  "; it must be above 0 and at most 1"));
  require(options.end_factor >= 0 && options.end_factor <= 1,
          text_of("linear(): end_factor is ", options.end_factor, "; it must be from 0 to 1"));
  require(options.steps > 0, text_of("linear() needs at least one step, not ", options.steps));
  return std::make_shared<LinearRule>(options);
}

Rule one_cycle(const OneCycleOptions& options) {
  require(!options.max_lr.empty(), "one_cycle() needs max_lr");
  require(options.total_steps > 0,
          text_of("one_cycle() needs total_steps of at least 1, not ", options.total_steps));
  require(
      options.pct_start >= 0 && options.pct_start < 1,
      text_of("one_cycle(): pct_start is ", options.pct_start,
              "; it must be from 0 to less than 1: its formula divides by the part that falls"));
  // The rise would be of no length and still contain step 0.
  require(options.pct_start * static_cast<double>(options.total_steps) != 1,
          "one_cycle(): pct_start * total_steps is exactly 1, for which its formula divides zero "
          "by zero; change pct_start a little");
  return std::make_shared<OneCycleRule>(options);
}

Rule chained(std::vector<Rule> parts) {
  require(!parts.empty(), "chained() needs at least one rule");
  for (const Rule& part : parts) {
    require(dynamic_cast<const OneCycleRule*>(part.get()) == nullptr,
            "one_cycle sets the rates outright and cannot be chained");
  }
  return std::make_shared<ChainedRule>(std::move(parts));
}

Rule sequential(std::vector<Rule> parts, std::vector<std::int64_t> milestones) {
  require(!parts.empty(), "sequential() needs at least one rule");
  require(milestones.size() + 1 == parts.size(),
          text_of("sequential() needs a milestone between any two rules: ", parts.size(),
                  " rules, ", milestones.size(), " milestones"));
  std::vector<SequentialRule::Part> plain;
  for (const Rule& part : parts) {
    plain.push_back(std::dynamic_pointer_cast<const PlainRule>(part));
    require(plain.back() != nullptr, part->shape() + " cannot be a part of sequential()");
  }
  std::int64_t before = 0;
  for (const std::int64_t milestone : milestones) {
    require(milestone > before, "sequential(): the milestones must rise, from 1 on");
    before = milestone;
  }
  return std::make_shared<SequentialRule>(std::move(plain), std::move(milestones));
}

}  // namespace ddprun::schedules
