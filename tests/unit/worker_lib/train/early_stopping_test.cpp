#include "ddprun/early_stopping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/history.h"

namespace ddprun {
namespace {

const double kNan = std::nan("");

// After how many values it was over; 0: never.
int over_after(EarlyStopping& stopping, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (stopping.add(values[i])) return static_cast<int>(i) + 1;
  }
  return 0;
}

TEST(EarlyStopping, EndsAfterSoManyValuesInARowWithoutImprovement) {
  EarlyStopping stopping({.patience = 2});
  EXPECT_EQ(over_after(stopping, {1, 2, 1.5, 3, 3, 2.9, 4}), 6);
  EXPECT_EQ(stopping.best(), 3);
  EXPECT_TRUE(stopping.add(100));  // it stays over
}

TEST(EarlyStopping, AnImprovementIsMoreThanMinDelta) {
  EarlyStopping higher({.patience = 2, .min_delta = 0.5});
  EXPECT_EQ(over_after(higher, {1, 1.5, 1.5}), 3);
  EarlyStopping lower({.patience = 2, .min_delta = 0.5, .mode = MetricMode::kMin});
  EXPECT_EQ(over_after(lower, {1, 0.4, 0.3, 0.2}), 4);
  EXPECT_EQ(lower.best(), 0.4);
}

TEST(EarlyStopping, ANanNeverImproves) {
  EarlyStopping stopping({.patience = 3});
  EXPECT_EQ(over_after(stopping, {kNan, kNan, 1, kNan, kNan, kNan}), 6);
  EXPECT_EQ(stopping.best(), 1);
}

TEST(EarlyStopping, ContinuesWhereItWas) {
  EarlyStopping first({.patience = 3});
  over_after(first, {0.1, 0.05, 0.07});
  EarlyStopping second({.patience = 3});
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(second.best(), 0.1);
  EXPECT_TRUE(second.add(0.1));
}

TEST(EarlyStopping, RefusesWhatMakesNoSense) {
  EXPECT_THROW(EarlyStopping({.patience = 0}), UsageError);
  EXPECT_THROW(EarlyStopping({.min_delta = -1}), UsageError);
  EXPECT_THROW(EarlyStopping({.min_delta = kNan}), UsageError);
}

TEST(History, FindsTheFirstOfTheBest) {
  History history;
  for (const double value : {kNan, 0.5, 0.9, 0.9, 0.2}) {
    const auto step = static_cast<std::int64_t>(history.evaluations.size());
    history.evaluations.push_back({0, step, {{"x", value}}});
  }
  EXPECT_EQ(history.best("x")->step, 2);
  EXPECT_EQ(history.best("x", MetricMode::kMin)->step, 4);
  EXPECT_EQ(history.best("y"), nullptr);
}

TEST(History, ComesBackFromItsStateWithEveryBit) {
  History history;
  history.epochs.push_back({3, 70, 1.0 / 3, {{"a b", 0.1}, {"", 2}}, 1e-7, 12.5});
  history.evaluations.push_back({3, 70, {{"accuracy \"top\"", 2.0 / 3}}});
  history.evaluations.push_back({4, 80, {}});
  const History again = History::from_state(history.to_state());
  EXPECT_EQ(again.evaluations, history.evaluations);
  ASSERT_EQ(again.epochs.size(), 1u);
  EXPECT_EQ(again.epochs[0].epoch, 3);
  EXPECT_EQ(again.epochs[0].step, 70);
  EXPECT_EQ(again.epochs[0].loss, 1.0 / 3);
  EXPECT_EQ(again.epochs[0].metrics, history.epochs[0].metrics);
  EXPECT_EQ(again.epochs[0].learning_rate, 1e-7);
  EXPECT_EQ(again.epochs[0].seconds, 12.5);
  EXPECT_THROW(History::from_state("{}"), UsageError);
}

}  // namespace
}  // namespace ddprun
