// The rates themselves are compared with Python's in tests/compat/schedule_parity.py.
#include "ddprun/lr_rules.h"

#include <gtest/gtest.h>

#include <functional>

#include "ddprun/error.h"

namespace ddprun::lr_scheduler {
namespace {

std::string error_of(const std::function<void()>& make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(LrRules, RefuseWhatCannotWorkAndSayWhy) {
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[] { step_lr(0); }, "step_size of at least 1"},
      {[] {
         multi_step_lr({3, -1});
       },
       "negative"},
      {[] { cosine_annealing_lr(0); }, "at least one step"},
      {[] { linear_lr({.start_factor = 0}); }, "start_factor is 0"},
      {[] { linear_lr({.end_factor = 1.5}); }, "end_factor is 1.5"},
      {[] { linear_lr({.total_iters = 0}); }, "at least one step"},
      {[] { one_cycle_lr({.total_steps = 5}); }, "needs max_lr"},
      {[] { one_cycle_lr({.max_lr = {0.1}}); }, "total_steps of at least 1"},
      {[] { one_cycle_lr({.max_lr = {0.1}, .total_steps = 9, .pct_start = 2}); }, "pct_start is 2"},
      {[] { one_cycle_lr({.max_lr = {0.1}, .total_steps = 9, .pct_start = 1}); }, "less than 1"},
      {[] { one_cycle_lr({.max_lr = {0.1}, .total_steps = 2, .pct_start = 0.5}); }, "exactly 1"},
      {[] { chained({}); }, "at least one rule"},
      {[] { chained({one_cycle_lr({.max_lr = {0.1}, .total_steps = 9})}); }, "cannot be chained"},
      {[] { sequential_lr({}, {}); }, "at least one rule"},
      {[] {
         sequential_lr({cosine_annealing_lr(3), cosine_annealing_lr(3)}, {});
       },
       "2 rules, 0 milestones"},
      {[] {
         sequential_lr({cosine_annealing_lr(3), step_lr(3), step_lr(3)}, {4, 4});
       },
       "must rise"},
      {[] {
         sequential_lr({cosine_annealing_lr(3), step_lr(3)}, {0});
       },
       "must rise"},
      {[] {
         sequential_lr({chained({step_lr(1)}), step_lr(3)}, {5});
       },
       "chained(step) cannot be a part"},
  };
  for (const auto& [make, words] : cases) {
    EXPECT_NE(error_of(make).find(words), std::string::npos) << error_of(make) << " / " << words;
  }
}

TEST(LrRules, OneCycleRefusesAnOptimizerThatItDoesNotFit) {
  std::vector<GroupRates> two_without_momentum{{0.1, 0.1}, {0.1, 0.1}};
  EXPECT_NE(error_of([&] {
              one_cycle_lr({.max_lr = {1}, .total_steps = 9}).begin(two_without_momentum);
            }).find("cycle_momentum = false"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              one_cycle_lr({.max_lr = {1, 2, 3}, .total_steps = 9}).begin(two_without_momentum);
            }).find("3 values of max_lr for 2 parameter groups"),
            std::string::npos);
}

TEST(LrRules, OneCycleEndsWithItsSteps) {
  const Rule rule = one_cycle_lr({.max_lr = {1}, .total_steps = 9});
  std::vector<GroupRates> groups{{0.1, 0.1, 0.9}};
  rule.begin(groups);
  rule.advance(9, groups);
  EXPECT_NE(error_of([&] { rule.advance(10, groups); }).find("made for 9 steps"),
            std::string::npos);
}

TEST(LrRules, AnOptimizerWithoutMomentumGetsNone) {
  std::vector<GroupRates> groups{{0.1, 0.1}};
  const Rule rule = one_cycle_lr({.max_lr = {1}, .total_steps = 9, .cycle_momentum = false});
  rule.begin(groups);
  rule.advance(1, groups);
  EXPECT_FALSE(groups[0].momentum.has_value());
}

TEST(LrRules, AShapeIsWithoutParameters) {
  const Rule rule = sequential_lr({linear_lr({.total_iters = 3}), cosine_annealing_lr(10)}, {3});
  EXPECT_EQ(rule.shape, "sequential(linear, cosine)");
  EXPECT_EQ(rule.text, "sequential(linear(0.333333 to 1 in 3), cosine(10, 0), 3)");
}

}  // namespace
}  // namespace ddprun::lr_scheduler
