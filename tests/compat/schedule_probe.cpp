// Prints the rates that learning-rate rules give, exactly, for schedule_parity.py, which makes the
// same with torch.optim.lr_scheduler: for each case "<name>", then one line per step: each group's
// rate and momentum as hexadecimal floats.
#include <cstdio>
#include <map>
#include <string>

#include "ddprun/schedule_rules.h"

int main() {
  using namespace ddprun::schedules;
  using Anneal = OneCycleOptions::Anneal;
  constexpr int kSteps = 60;
  const std::map<std::string, Rule> cases = {
      {"step", step(7, 0.3)},
      {"multi_step", multi_step({3, 11, 11, 30}, 0.7)},
      {"multi_step_from_0", multi_step({0, 5}, 0.1)},
      {"exponential", exponential(0.93)},
      {"cosine", cosine(13, 0.001)},
      {"cosine_long", cosine(1000)},
      {"linear", linear({.start_factor = 0.1, .steps = 9})},
      {"linear_down", linear({.start_factor = 1, .end_factor = 0.2, .steps = 17})},
      {"linear_default", linear()},
      {"one_cycle", one_cycle({.max_lr = {0.3, 0.07}, .total_steps = kSteps})},
      {"one_cycle_linear", one_cycle({.max_lr = {0.3},
                                      .total_steps = kSteps,
                                      .pct_start = 0.45,
                                      .anneal = Anneal::kLinear,
                                      .div_factor = 10,
                                      .final_div_factor = 100})},
      {"one_cycle_three", one_cycle({.max_lr = {0.3}, .total_steps = kSteps, .three_phase = true})},
      {"one_cycle_fixed_momentum",
       one_cycle({.max_lr = {0.3}, .total_steps = kSteps, .cycle_momentum = false})},
      {"chained", chained({linear({.start_factor = 0.1, .steps = 6}), exponential(0.9)})},
      {"chained_three", chained({cosine(25), step(10, 0.5), multi_step({33}, 0.2)})},
      {"warm_up_cosine",
       sequential({linear({.start_factor = 0.05, .steps = 8}), cosine(40, 1e-4)}, {8})},
      {"sequence_of_four",
       sequential({exponential(0.8), multi_step({0, 2}, 0.5), step(3, 0.9), linear({.steps = 4})},
                  {5, 20, 41})},
      {"chained_sequence",
       chained({sequential({linear({.steps = 5}), exponential(0.95)}, {5}), step(20, 0.1)})},
  };
  for (const auto& [name, rule] : cases) {
    std::vector<ddprun::GroupRates> groups{{0.1, 0.1, 0.9}, {0.037, 0.037, 0.9}};
    rule->begin(groups);
    std::printf("%s\n", name.c_str());
    for (int i = 1; i <= kSteps; ++i) {
      std::printf("%a %a %a %a\n", groups[0].lr, *groups[0].momentum, groups[1].lr,
                  *groups[1].momentum);
      rule->advance(i, groups);
    }
  }
}
