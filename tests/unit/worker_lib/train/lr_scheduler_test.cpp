#include "ddprun/lr_scheduler.h"

#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "ddprun/error.h"
#include "ddprun/optim.h"

namespace ddprun {
namespace {

using namespace lr_scheduler;

std::vector<torch::Tensor> one_parameter() { return {torch::zeros({1}, torch::requires_grad())}; }

torch::optim::SGD sgd(double lr = 0.1) {
  return torch::optim::SGD(one_parameter(), torch::optim::SGDOptions(lr).momentum(0.9));
}

double momentum_of(torch::optim::SGD& optimizer) {
  return dynamic_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).momentum();
}

Rule warm_up_and_cosine() {
  return sequential_lr(
      {linear_lr({.start_factor = 0.1, .total_iters = 4}), cosine_annealing_lr(20)}, {4});
}

TEST(LRScheduler, SetsTheRatesOfEveryGroup) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(one_parameter());
  groups.emplace_back(one_parameter(), std::make_unique<torch::optim::SGDOptions>(0.5));
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(0.1));
  LRScheduler schedule(optimizer, step_lr(2, 0.5));
  schedule.step();
  EXPECT_EQ(schedule.get_last_lr(), (std::vector<double>{0.1, 0.5}));
  schedule.step();
  EXPECT_EQ(schedule.get_last_lr(), (std::vector<double>{0.05, 0.25}));
  EXPECT_EQ(optimizer.param_groups()[1].options().get_lr(), 0.25);
}

TEST(LRScheduler, OneCycleMovesTheMomentumOfSgdAndTheBetaOfAdam) {
  auto optimizer = sgd();
  LRScheduler schedule(optimizer, one_cycle_lr({.max_lr = {1}, .total_steps = 10}));
  EXPECT_EQ(momentum_of(optimizer), 0.95);
  schedule.step();
  schedule.step();
  EXPECT_EQ(momentum_of(optimizer), 0.85);

  torch::optim::AdamW adam(one_parameter(), torch::optim::AdamWOptions(0.1));
  LRScheduler of_adam(adam, one_cycle_lr({.max_lr = {1}, .total_steps = 10}));
  of_adam.step();
  of_adam.step();
  const auto& options = dynamic_cast<torch::optim::AdamWOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(options.betas(), std::make_tuple(0.85, 0.999));

  optim::AdamW python_adam(one_parameter(), optim::AdamWOptions(0.1));
  LRScheduler of_python_adam(python_adam, one_cycle_lr({.max_lr = {1}, .total_steps = 10}));
  const auto& of_group = dynamic_cast<optim::AdamOptions&>(python_adam.param_groups()[0].options());
  EXPECT_EQ(of_group.betas(), std::make_tuple(0.95, 0.999));
  optim::SGD python_sgd(one_parameter(), optim::SGDOptions(0.1).momentum(0.9));
  LRScheduler of_python_sgd(python_sgd, one_cycle_lr({.max_lr = {1}, .total_steps = 10}));
  EXPECT_EQ(dynamic_cast<optim::SGDOptions&>(python_sgd.param_groups()[0].options()).momentum(),
            0.95);

  torch::optim::Adagrad adagrad(one_parameter(), torch::optim::AdagradOptions(0.1));
  EXPECT_THROW(LRScheduler(adagrad, one_cycle_lr({.max_lr = {1}, .total_steps = 10})), UsageError);
}

TEST(LRScheduler, ContinuesInTheMiddleWithTheSameRates) {
  for (const Rule& rule :
       {warm_up_and_cosine(), one_cycle_lr({.max_lr = {0.7}, .total_steps = 40})}) {
    for (const int saved_at : {0, 3, 4, 11}) {
      auto first = sgd();
      LRScheduler uninterrupted(first, rule);
      for (int i = 0; i < saved_at; ++i) uninterrupted.step();
      const std::string state = uninterrupted.state_dict();

      auto second = sgd();
      LRScheduler resumed(second, rule);
      resumed.load_state_dict(state);
      EXPECT_EQ(resumed.steps(), saved_at);
      for (int i = saved_at; i < 30; ++i) {
        EXPECT_EQ(resumed.get_last_lr(), uninterrupted.get_last_lr()) << rule.text << i;
        EXPECT_EQ(momentum_of(first), momentum_of(second));
        uninterrupted.step();
        resumed.step();
      }
    }
  }
}

TEST(LRScheduler, RefusesTheStateOfAnotherAndChangesNothing) {
  auto optimizer = sgd();
  LRScheduler schedule(optimizer, warm_up_and_cosine());
  schedule.step();
  const auto before = schedule.state_dict();

  auto other_optimizer = sgd();
  LRScheduler other(other_optimizer, exponential_lr(0.9));
  EXPECT_THROW(schedule.load_state_dict(other.state_dict()), UsageError);

  std::vector<torch::optim::OptimizerParamGroup> two_groups;
  two_groups.emplace_back(one_parameter());
  two_groups.emplace_back(one_parameter());
  torch::optim::SGD larger(two_groups, torch::optim::SGDOptions(0.1));
  LRScheduler of_larger(larger, warm_up_and_cosine());
  EXPECT_THROW(schedule.load_state_dict(of_larger.state_dict()), UsageError);

  EXPECT_THROW(schedule.load_state_dict("nonsense"), UsageError);
  std::string without_rate = before;
  without_rate.replace(without_rate.find("\"lr.0\""), 6, "\"lr.9\"");
  EXPECT_THROW(schedule.load_state_dict(without_rate), UsageError);
  EXPECT_EQ(schedule.state_dict(), before);
}

TEST(LRScheduler, KeepsThisProgramsParametersWhenTheyChanged) {
  auto optimizer = sgd();
  LRScheduler schedule(optimizer, exponential_lr(0.5));
  schedule.step();
  auto again = sgd();
  LRScheduler other(again, exponential_lr(0.1));
  other.load_state_dict(schedule.state_dict());
  EXPECT_EQ(other.get_last_lr()[0], 0.05);
  other.step();
  EXPECT_EQ(other.get_last_lr()[0], 0.05 * 0.1);
}

TEST(LRScheduler, NoticesGroupsThatWereAddedAfterIt) {
  auto optimizer = sgd();
  LRScheduler schedule(optimizer, exponential_lr(0.5));
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(one_parameter()));
  EXPECT_THROW(schedule.step(), UsageError);
}

}  // namespace
}  // namespace ddprun
