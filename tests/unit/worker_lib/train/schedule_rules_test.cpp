// The rates themselves are compared with Python's in tests/compat/schedule_parity.py.
#include "ddprun/schedule_rules.h"

#include <gtest/gtest.h>

#include <functional>

#include "ddprun/error.h"

namespace ddprun::schedules {
namespace {

std::string error_of(const std::function<void()>& make) {
  try {
    make();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(ScheduleRules, RefuseWhatCannotWorkAndSayWhy) {
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[] { step(0); }, "period of at least 1"},
      {[] {
         multi_step({3, -1});
       },
       "negative"},
      {[] { cosine(0); }, "at least one step"},
      {[] { linear({.start_factor = 0}); }, "start_factor is 0"},
      {[] { linear({.end_factor = 1.5}); }, "end_factor is 1.5"},
      {[] { linear({.steps = 0}); }, "at least one step"},
      {[] { one_cycle({.total_steps = 5}); }, "needs max_lr"},
      {[] { one_cycle({.max_lr = {0.1}}); }, "total_steps of at least 1"},
      {[] { one_cycle({.max_lr = {0.1}, .total_steps = 9, .pct_start = 2}); }, "pct_start is 2"},
      {[] { one_cycle({.max_lr = {0.1}, .total_steps = 9, .pct_start = 1}); }, "less than 1"},
      {[] { one_cycle({.max_lr = {0.1}, .total_steps = 2, .pct_start = 0.5}); }, "exactly 1"},
      {[] { chained({}); }, "at least one rule"},
      {[] { chained({one_cycle({.max_lr = {0.1}, .total_steps = 9})}); }, "cannot be chained"},
      {[] { sequential({}, {}); }, "at least one rule"},
      {[] {
         sequential({cosine(3), cosine(3)}, {});
       },
       "2 rules, 0 milestones"},
      {[] {
         sequential({cosine(3), step(3), step(3)}, {4, 4});
       },
       "must rise"},
      {[] {
         sequential({cosine(3), step(3)}, {0});
       },
       "must rise"},
      {[] {
         sequential({chained({step(1)}), step(3)}, {5});
       },
       "chained(step) cannot be a part"},
  };
  for (const auto& [make, words] : cases) {
    EXPECT_NE(error_of(make).find(words), std::string::npos) << error_of(make) << " / " << words;
  }
}

TEST(ScheduleRules, OneCycleRefusesAnOptimizerThatItDoesNotFit) {
  std::vector<GroupRates> two_without_momentum{{0.1, 0.1}, {0.1, 0.1}};
  EXPECT_NE(error_of([&] {
              one_cycle({.max_lr = {1}, .total_steps = 9})->begin(two_without_momentum);
            }).find("cycle_momentum = false"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              one_cycle({.max_lr = {1, 2, 3}, .total_steps = 9})->begin(two_without_momentum);
            }).find("3 values of max_lr for 2 parameter groups"),
            std::string::npos);
}

TEST(ScheduleRules, OneCycleEndsWithItsSteps) {
  const Rule rule = one_cycle({.max_lr = {1}, .total_steps = 9});
  std::vector<GroupRates> groups{{0.1, 0.1, 0.9}};
  rule->begin(groups);
  rule->advance(9, groups);
  EXPECT_NE(error_of([&] { rule->advance(10, groups); }).find("made for 9 steps"),
            std::string::npos);
}

TEST(ScheduleRules, AnOptimizerWithoutMomentumGetsNone) {
  std::vector<GroupRates> groups{{0.1, 0.1}};
  const Rule rule = one_cycle({.max_lr = {1}, .total_steps = 9, .cycle_momentum = false});
  rule->begin(groups);
  rule->advance(1, groups);
  EXPECT_FALSE(groups[0].momentum.has_value());
}

TEST(ScheduleRules, AShapeIsWithoutParameters) {
  const Rule rule = sequential({linear({.steps = 3}), cosine(10)}, {3});
  EXPECT_EQ(rule->shape(), "sequential(linear, cosine)");
  EXPECT_EQ(rule->text(), "sequential(linear(0.333333 to 1 in 3), cosine(10, 0), 3)");
}

}  // namespace
}  // namespace ddprun::schedules
