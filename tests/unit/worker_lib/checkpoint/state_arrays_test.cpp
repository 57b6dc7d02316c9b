#include "worker_lib/checkpoint/state_arrays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/optim.h"

namespace ddprun {
namespace {

using ::testing::ElementsAreArray;

torch::nn::Sequential new_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                               torch::nn::Linear(4, 2));
}

void step(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer) {
  optimizer.zero_grad();
  model->forward(torch::randn({5, 3})).sum().backward();
  optimizer.step();
}

std::vector<std::string> names_in(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

// As state_of(), whose names are new each time.
void expect_is_state(StateView& view, torch::nn::Sequential& model,
                     torch::optim::Optimizer& optimizer) {
  view.update(*model, optimizer);
  NamedTensors all = view.shared();
  for (const auto& [name, tensor] : view.buffers()) EXPECT_TRUE(all.emplace(name, tensor).second);
  const NamedTensors expected = state_of(*model, optimizer);
  ASSERT_THAT(names_in(all), ElementsAreArray(names_in(expected)));
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(all.at(name), tensor)) << name;
}

TEST(StateView, IsWhatIsThereNow) {
  auto model = new_model();
  torch::optim::Adam optimizer(model->parameters(), 0.1);  // counts its steps in an integer
  StateView view;
  expect_is_state(view, model, optimizer);
  for (int i = 0; i < 3; ++i) {
    step(model, optimizer);
    expect_is_state(view, model, optimizer);
  }
  EXPECT_EQ(view.shared().at("optimizer.0.weight.step").item<int>(), 3);
  EXPECT_EQ(view.shared().count("model.1.running_mean"), 0U);
  EXPECT_EQ(view.buffers().count("model.1.running_mean"), 1U);

  optimizer.state().erase(model->parameters()[1].unsafeGetTensorImpl());
  expect_is_state(view, model, optimizer);
  torch::optim::SGD other(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_is_state(view, model, other);
  step(model, other);
  expect_is_state(view, model, other);
}

// Its steps are tensors, and the other's are integers.
TEST(StateView, SeesAnotherKindOfOptimizerWithTheSameNames) {
  auto model = new_model();
  optim::Adam with_tensors(model->parameters(), optim::AdamOptions(0.1));
  torch::optim::Adam with_integers(model->parameters(), 0.1);
  StateView view;
  for (int i = 0; i < 2; ++i) {
    step(model, with_tensors);
    expect_is_state(view, model, with_tensors);
    step(model, with_integers);
    expect_is_state(view, model, with_integers);
  }
}

TEST(StateView, SeesAnotherModelAndAnotherOptimizersParameters) {
  auto model = new_model();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  StateView view;
  expect_is_state(view, model, optimizer);
  auto second = new_model();
  torch::optim::SGD of_second(second->parameters(), 0.1);
  expect_is_state(view, second, of_second);
  second->push_back(torch::nn::Linear(2, 2));
  expect_is_state(view, second, of_second);
  of_second.add_parameters(model->parameters());
  EXPECT_THROW(view.update(*second, of_second), UsageError);
}

}  // namespace
}  // namespace ddprun
