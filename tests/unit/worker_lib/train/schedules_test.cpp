#include "ddprun/schedules.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "ddprun/error.h"

namespace ddprun {
namespace {

using namespace schedules;

std::vector<torch::Tensor> one_parameter() { return {torch::zeros({1}, torch::requires_grad())}; }

torch::optim::SGD sgd(double lr = 0.1) {
  return torch::optim::SGD(one_parameter(), torch::optim::SGDOptions(lr).momentum(0.9));
}

double momentum_of(torch::optim::SGD& optimizer) {
  return dynamic_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum();
}

Rule warm_up_and_cosine() {
  return sequential({linear({.start_factor = 0.1, .steps = 4}), cosine(20)}, {4});
}

TEST(Schedule, SetsTheRatesOfEveryGroup) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(one_parameter());
  groups.emplace_back(one_parameter(), std::make_unique<torch::optim::SGDOptions>(0.5));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
  Schedule schedule(optimizer, step(2, 0.5));
  schedule.step();
  EXPECT_EQ(schedule.learning_rates(), (std::vector<double>{0.1, 0.5}));
  schedule.step();
  EXPECT_EQ(schedule.learning_rates(), (std::vector<double>{0.05, 0.25}));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.25);
}

TEST(Schedule, OneCycleMovesTheMomentumOfSgdAndTheBetaOfAdam) {
  auto optimizer = sgd();
  Schedule schedule(optimizer, one_cycle({.max_lr = {1}, .total_steps = 10}));
  EXPECT_EQ(momentum_of(optimizer), 0.95);
  schedule.step();
  schedule.step();
  EXPECT_EQ(momentum_of(optimizer), 0.85);

  torch::optim::AdamW adam(one_parameter(), torch::optim::AdamWOptions(0.1));
  Schedule of_adam(adam, one_cycle({.max_lr = {1}, .total_steps = 10}));
  of_adam.step();
  of_adam.step();
  const auto& options = dynamic_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.85, 0.999));

  torch::optim::Adagrad adagrad(one_parameter(), torch::optim::AdagradOptions(0.1));
  EXPECT_THROW(Schedule(adagrad, one_cycle({.max_lr = {1}, .total_steps = 10})), UsageError);
}

TEST(Schedule, ContinuesInTheMiddleWithTheSameRates) {
  for (const Rule& rule : {warm_up_and_cosine(), one_cycle({.max_lr = {0.7}, .total_steps = 40})}) {
    for (const int saved_at : {0, 3, 4, 11}) {
      auto first = sgd();
      Schedule uninterrupted(first, rule);
      for (int i = 0; i < saved_at; ++i) uninterrupted.step();
      const std::string state = uninterrupted.save_state();

      auto second = sgd();
      Schedule resumed(second, rule);
      resumed.load_state(state);
      EXPECT_EQ(resumed.steps(), saved_at);
      for (int i = saved_at; i < 30; ++i) {
        EXPECT_EQ(resumed.learning_rates(), uninterrupted.learning_rates()) << rule->text() << i;
        EXPECT_EQ(momentum_of(first), momentum_of(second));
        uninterrupted.step();
        resumed.step();
      }
    }
  }
}

TEST(Schedule, RefusesTheStateOfAnotherAndChangesNothing) {
  auto optimizer = sgd();
  Schedule schedule(optimizer, warm_up_and_cosine());
  schedule.step();
  const auto before = schedule.save_state();

  auto other_optimizer = sgd();
  Schedule other(other_optimizer, exponential(0.9));
  EXPECT_THROW(schedule.load_state(other.save_state()), UsageError);

  std::vector<torch::optim::OptimizerParamGroup> two_groups;
  two_groups.emplace_back(one_parameter());
  two_groups.emplace_back(one_parameter());
  torch::optim::SGD larger(two_groups, torch::optim::SGDOptions(0.1));
  Schedule of_larger(larger, warm_up_and_cosine());
  EXPECT_THROW(schedule.load_state(of_larger.save_state()), UsageError);

  EXPECT_THROW(schedule.load_state("nonsense"), UsageError);
  std::string without_rate = before;
  without_rate.replace(without_rate.find("\"lr.0\""), 6, "\"lr.9\"");
  EXPECT_THROW(schedule.load_state(without_rate), UsageError);
  EXPECT_EQ(schedule.save_state(), before);
}

TEST(Schedule, KeepsThisProgramsParametersWhenTheyChanged) {
  auto optimizer = sgd();
  Schedule schedule(optimizer, exponential(0.5));
  schedule.step();
  auto again = sgd();
  Schedule other(again, exponential(0.1));
  other.load_state(schedule.save_state());
  EXPECT_EQ(other.learning_rates()[0], 0.05);
  other.step();
  EXPECT_EQ(other.learning_rates()[0], 0.05 * 0.1);
}

TEST(Schedule, NoticesGroupsThatWereAddedAfterIt) {
  auto optimizer = sgd();
  Schedule schedule(optimizer, exponential(0.5));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(one_parameter()));
  EXPECT_THROW(schedule.step(), UsageError);
}

}  // namespace
}  // namespace ddprun
