// Prints the rates that learning-rate rules give, exactly, for schedule_parity.py, which makes the
// same with torch.optim.lr_scheduler: for each case "<name>", then one line per step: each group's
// rate and momentum as hexadecimal floats.
#include <cstdio>
#include <map>
#include <string>

#include "ddprun/lr_rules.h"

int main() {
  using namespace ddprun::lr_scheduler;
  using Anneal = OneCycleOptions::Anneal;
  constexpr int kSteps = 60;
  const std::map<std::string, Rule> cases = {
      {"step", step_lr(7, 0.3)},
      {"multi_step", multi_step_lr({3, 11, 11, 30}, 0.7)},
      {"multi_step_from_0", multi_step_lr({0, 5}, 0.1)},
      {"exponential", exponential_lr(0.93)},
      {"cosine", cosine_annealing_lr(13, 0.001)},
      {"cosine_long", cosine_annealing_lr(1000)},
      {"linear", linear_lr({.start_factor = 0.1, .total_iters = 9})},
      {"linear_down", linear_lr({.start_factor = 1, .end_factor = 0.2, .total_iters = 17})},
      {"linear_default", linear_lr()},
      {"one_cycle", one_cycle_lr({.max_lr = {0.3, 0.07}, .total_steps = kSteps})},
      {"one_cycle_linear", one_cycle_lr({.max_lr = {0.3},
                                         .total_steps = kSteps,
                                         .pct_start = 0.45,
                                         .anneal_strategy = Anneal::kLinear,
                                         .div_factor = 10,
                                         .final_div_factor = 100})},
      {"one_cycle_three",
       one_cycle_lr({.max_lr = {0.3}, .total_steps = kSteps, .three_phase = true})},
      {"one_cycle_fixed_momentum",
       one_cycle_lr({.max_lr = {0.3}, .total_steps = kSteps, .cycle_momentum = false})},
      {"chained",
       chained({linear_lr({.start_factor = 0.1, .total_iters = 6}), exponential_lr(0.9)})},
      {"chained_three",
       chained({cosine_annealing_lr(25), step_lr(10, 0.5), multi_step_lr({33}, 0.2)})},
      {"warm_up_cosine", sequential_lr({linear_lr({.start_factor = 0.05, .total_iters = 8}),
                                        cosine_annealing_lr(40, 1e-4)},
                                       {8})},
      {"sequence_of_four", sequential_lr({exponential_lr(0.8), multi_step_lr({0, 2}, 0.5),
                                          step_lr(3, 0.9), linear_lr({.total_iters = 4})},
                                         {5, 20, 41})},
      {"chained_sequence",
       chained({sequential_lr({linear_lr({.total_iters = 5}), exponential_lr(0.95)}, {5}),
                step_lr(20, 0.1)})},
  };
  for (const auto& [name, rule] : cases) {
    std::vector<ddprun::GroupRates> groups{{0.1, 0.1, 0.9}, {0.037, 0.037, 0.9}};
    rule.begin(groups);
    std::printf("%s\n", name.c_str());
    for (int i = 1; i <= kSteps; ++i) {
      std::printf("%a %a %a %a\n", groups[0].lr, *groups[0].momentum, groups[1].lr,
                  *groups[1].momentum);
      rule.advance(i, groups);
    }
  }
}
