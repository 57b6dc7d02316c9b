#include "ddprun/lr_rules.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>
#include <sstream>
#include <utility>

#include "ddprun/error.h"

// Built without fused multiply-add (CMakeLists.txt): Python rounds after every operation.
namespace ddprun::lr_scheduler {
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

using First = std::function<double(double lr)>;
using Next = std::function<double(std::int64_t step, double lr, double base)>;

double unchanged(double lr) { return lr; }

// A rule that treats every group alike, by its rate now and its base rate. `at_zero` is Python's closed
// form, of the base rate.
Rule plain(std::string shape, std::string text, const Next& next, const First& begin = unchanged,
           const First& at_zero = unchanged) {
  return {.shape = std::move(shape),
          .text = std::move(text),
          .begin =
              [begin](Groups& groups) {
                for (GroupRates& group : groups) group.lr = begin(group.lr);
              },
          .advance =
              [next](std::int64_t step, Groups& groups) {
                for (GroupRates& group : groups) group.lr = next(step, group.lr, group.base_lr);
              },
          .take_over =
              [at_zero](Groups& groups) {
                for (GroupRates& group : groups) group.lr = at_zero(group.base_lr);
              }};
}

class OneCycle {
 public:
  explicit OneCycle(OneCycleOptions options) : options_(std::move(options)) {
    using enum Level;
    const auto total = static_cast<double>(options_.total_steps);
    turns_ = {{0, kInitial}, {options_.pct_start * total - 1, kMax}};
    if (options_.three_phase) turns_.push_back({2 * options_.pct_start * total - 2, kInitial});
    turns_.push_back({total - 1, kMin});
  }

  void begin(Groups& groups) const {
    if (options_.max_lr.size() != 1 && options_.max_lr.size() != groups.size()) {
      throw UsageError(text_of("one_cycle_lr was given ", options_.max_lr.size(),
                               " values of max_lr for ", groups.size(),
                               " parameter groups; give one, or one for each"));
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (options_.cycle_momentum && !groups[i].momentum) {
        throw UsageError(
            "one_cycle_lr moves the momentum, and this optimizer has neither momentum nor betas: "
            "set "
            "cycle_momentum = false");
      }
      groups[i].base_lr = max_lr(i) / options_.div_factor;
    }
    advance(0, groups);
  }

  void advance(std::int64_t step, Groups& groups) const {
    if (step > options_.total_steps) {
      throw UsageError(text_of("one_cycle_lr was made for ", options_.total_steps,
                               " steps and is asked for step ", step,
                               "; give it the number of steps of the whole training"));
    }
    const auto t = static_cast<double>(step);
    std::size_t next = 1;
    while (next + 1 < turns_.size() && t > turns_[next].step) ++next;
    const Turn &from = turns_[next - 1], &to = turns_[next];
    const double part = (t - from.step) / (to.step - from.step);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      GroupRates& group = groups[i];
      group.lr = between(lr_of(from.level, group, i), lr_of(to.level, group, i), part);
      if (options_.cycle_momentum) {
        group.momentum = between(momentum_of(from.level), momentum_of(to.level), part);
      }
    }
  }

  std::string text() const {
    std::string list;
    for (const double max : options_.max_lr) list += text_of(max, " ");
    return text_of("one_cycle(max_lr ", list, "in ", options_.total_steps, ", pct_start ",
                   options_.pct_start, ", momentum ", options_.base_momentum, " to ",
                   options_.max_momentum, ", div_factor ", options_.div_factor, " and ",
                   options_.final_div_factor, options_.three_phase ? ", three phases" : "", ")");
  }

 private:
  // Of the rate. The momentum is the lowest where the rate is the highest, else the highest.
  enum class Level { kInitial, kMax, kMin };
  struct Turn {
    double step;  // the last one of a phase, and 0; not always a whole number
    Level level;  // which the rate has then
  };

  double max_lr(std::size_t group) const {
    return options_.max_lr[options_.max_lr.size() == 1 ? 0 : group];
  }
  double lr_of(Level level, const GroupRates& group, std::size_t i) const {
    if (level == Level::kMax) return max_lr(i);
    return level == Level::kMin ? group.base_lr / options_.final_div_factor : group.base_lr;
  }
  double momentum_of(Level level) const {
    return level == Level::kMax ? options_.base_momentum : options_.max_momentum;
  }
  double between(double from, double to, double part) const {
    if (options_.anneal_strategy == OneCycleOptions::Anneal::kLinear)
      return (to - from) * part + from;
    return to + (from - to) / 2.0 * (std::cos(kPi * part) + 1);
  }

  OneCycleOptions options_;
  std::vector<Turn> turns_;
};

std::string joined(const std::vector<Rule>& parts, std::string Rule::*name) {
  std::string all;
  for (const Rule& part : parts) all += (all.empty() ? "" : ", ") + part.*name;
  return all;
}

}  // namespace

Rule step_lr(std::int64_t step_size, double gamma) {
  require(step_size > 0, text_of("step_lr() needs a step_size of at least 1, not ", step_size));
  return plain("step", text_of("step(", step_size, ", ", gamma, ")"),
               [=](std::int64_t step, double lr, double) {
                 return step % step_size == 0 ? lr * gamma : lr;
               });
}

Rule multi_step_lr(std::vector<std::int64_t> milestones, double gamma) {
  std::string list;
  for (const std::int64_t milestone : milestones) {
    require(milestone >= 0, "multi_step_lr() counts from 0: a milestone is negative");
    list += (list.empty() ? "" : " ") + std::to_string(milestone);
  }
  const auto scaled = [milestones = std::move(milestones), gamma](std::int64_t step, double lr) {
    const auto times = std::count(milestones.begin(), milestones.end(), step);
    return times == 0 ? lr : lr * std::pow(gamma, static_cast<double>(times));
  };
  const auto begin = [scaled](double lr) { return scaled(0, lr); };  // as Python's constructor
  return plain(
      "multi_step", text_of("multi_step({", list, "}, ", gamma, ")"),
      [scaled](std::int64_t step, double lr, double) { return scaled(step, lr); }, begin, begin);
}

Rule exponential_lr(double gamma) {
  return plain("exponential", text_of("exponential(", gamma, ")"),
               [gamma](std::int64_t, double lr, double) { return lr * gamma; });
}

Rule cosine_annealing_lr(std::int64_t t_max, double eta_min) {
  require(t_max > 0, text_of("cosine_annealing_lr() needs at least one step, not ", t_max));
  const auto next = [=](std::int64_t step, double lr, double base) {
    const auto t = static_cast<double>(step);
    const auto whole = static_cast<double>(t_max);
    // At the bottom the ratio below would divide by zero.
    if ((step - 1 - t_max) % (2 * t_max) == 0) {
      return lr + (base - eta_min) * (1 - std::cos(kPi / whole)) / 2;
    }
    return (1 + std::cos(kPi * t / whole)) / (1 + std::cos(kPi * (t - 1) / whole)) *
               (lr - eta_min) +
           eta_min;
  };
  return plain("cosine", text_of("cosine(", t_max, ", ", eta_min, ")"), next, unchanged,
               [=](double base) { return eta_min + (base - eta_min) * (1 + std::cos(0.0)) / 2; });
}

Rule linear_lr(const LinearOptions& options) {
  const auto [start, end, iterations] = options;
  require(start > 0 && start <= 1,
          text_of("linear_lr(): start_factor is ", start, "; it must be above 0 and at most 1"));
  require(end >= 0 && end <= 1,
          text_of("linear_lr(): end_factor is ", end, "; it must be from 0 to 1"));
  require(iterations > 0, text_of("linear_lr() needs at least one step, not ", iterations));
  const auto begin = [factor = start](double lr) { return lr * factor; };
  const auto next = [options](std::int64_t step, double lr, double) {
    if (step > options.total_iters) return lr;
    const double rise = options.end_factor - options.start_factor;
    return lr * (1.0 + rise / (static_cast<double>(options.total_iters) * options.start_factor +
                               static_cast<double>(step - 1) * rise));
  };
  return plain("linear", text_of("linear(", start, " to ", end, " in ", iterations, ")"), next,
               begin, begin);
}

Rule one_cycle_lr(const OneCycleOptions& options) {
  require(!options.max_lr.empty(), "one_cycle_lr() needs max_lr");
  require(options.total_steps > 0,
          text_of("one_cycle_lr() needs total_steps of at least 1, not ", options.total_steps));
  require(
      options.pct_start >= 0 && options.pct_start < 1,
      text_of("one_cycle_lr(): pct_start is ", options.pct_start,
              "; it must be from 0 to less than 1: its formula divides by the part that falls"));
  // The rise would be of no length and still contain step 0.
  require(
      options.pct_start * static_cast<double>(options.total_steps) != 1,
      "one_cycle_lr(): pct_start * total_steps is exactly 1, for which its formula divides zero "
      "by zero; change pct_start a little");
  const OneCycle cycle(options);
  return {.shape = "one_cycle",
          .text = cycle.text(),
          .begin = [cycle](Groups& groups) { cycle.begin(groups); },
          .advance = [cycle](std::int64_t step, Groups& groups) { cycle.advance(step, groups); }};
}

Rule chained(std::vector<Rule> parts) {
  require(!parts.empty(), "chained() needs at least one rule");
  for (const Rule& part : parts) {
    require(part.shape != "one_cycle",
            "one_cycle_lr sets the rates outright and cannot be chained");
  }
  return {.shape = "chained(" + joined(parts, &Rule::shape) + ")",
          .text = "chained(" + joined(parts, &Rule::text) + ")",
          .begin =
              [parts](Groups& groups) {
                for (const Rule& part : parts) part.begin(groups);
              },
          .advance =
              [parts](std::int64_t step, Groups& groups) {
                for (const Rule& part : parts) part.advance(step, groups);
              }};
}

Rule sequential_lr(std::vector<Rule> parts, std::vector<std::int64_t> milestones) {
  require(!parts.empty(), "sequential_lr() needs at least one rule");
  require(milestones.size() + 1 == parts.size(),
          text_of("sequential_lr() needs a milestone between any two rules: ", parts.size(),
                  " rules, ", milestones.size(), " milestones"));
  for (const Rule& part : parts) {
    require(part.take_over != nullptr, part.shape + " cannot be a part of sequential_lr()");
  }
  std::string list;
  std::int64_t before = 0;
  for (const std::int64_t milestone : milestones) {
    require(milestone > before, "sequential_lr(): the milestones must rise, from 1 on");
    before = milestone;
    list += ", " + std::to_string(milestone);
  }
  return {.shape = "sequential(" + joined(parts, &Rule::shape) + ")",
          .text = "sequential(" + joined(parts, &Rule::text) + list + ")",
          .begin =
              [first = parts.front()](Groups& groups) {
                for (GroupRates& group : groups) group.lr = group.base_lr;
                first.begin(groups);
              },
          .advance =
              [parts, milestones](std::int64_t step, Groups& groups) {
                const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
                const Rule& part = parts[static_cast<std::size_t>(next - milestones.begin())];
                const std::int64_t begun = next == milestones.begin() ? 0 : *(next - 1);
                if (begun > 0 && begun == step) {
                  part.take_over(groups);
                } else {
                  part.advance(step - begun, groups);
                }
              }};
}

}  // namespace ddprun::lr_scheduler
