#include "ddprun/optim.h"

#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <sstream>

#include "ddprun/error.h"
#include "worker_lib/optim/step_way.h"

namespace ddprun::optim {
namespace {

using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// With gradients, all from one seed.
Tensors parameters(int count, at::IntArrayRef sizes = {4, 3}) {
  torch::manual_seed(5);
  Tensors all;
  for (int i = 0; i < count; ++i) {
    all.push_back(torch::randn(sizes).requires_grad_());
    all.back().mutable_grad() = torch::randn(sizes);
  }
  return all;
}

// What a UsageError says; empty if there was none.
template <typename Call>
std::string refused(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// Operators that this thread calls, but for those that operators call.
thread_local int depth = 0;
thread_local int calls = 0;

template <typename Call>
int operators_of(const Call& call) {
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            if (depth++ == 0) ++calls;
            return nullptr;
          },
          [](const at::RecordFunction&, at::ObserverContext*) { --depth; })
          .scopes({at::RecordScope::FUNCTION}));
  depth = calls = 0;
  call();
  at::removeCallback(handle);
  return calls;
}

TEST(Optim, ChoosesTheWayAsPythonDoes) {
  const std::optional<bool> none, yes = true, no = false;
  constexpr int kSingleTensors = 0, kForeach = 1, kFused = 2;
  struct Batch {
    struct {
      torch::Device device;
    } kind;
  };
  const auto way_of = [](auto foreach, auto fused, torch::DeviceType device) {
    return step_for(std::vector<Batch>{{{device}}}, SGDOptions(0.1).foreach (foreach).fused(fused),
                    kSingleTensors, kForeach, kFused);
  };
  EXPECT_EQ(way_of(none, none, torch::kCPU), kSingleTensors);
  EXPECT_EQ(way_of(none, none, torch::kCUDA), kForeach);
  EXPECT_EQ(way_of(yes, none, torch::kCPU), kForeach);
  EXPECT_EQ(way_of(yes, no, torch::kCPU), kForeach);
  EXPECT_EQ(way_of(none, yes, torch::kCUDA), kFused);
  EXPECT_EQ(way_of(no, yes, torch::kCUDA), kFused);
  EXPECT_EQ(way_of(no, none, torch::kCUDA), kSingleTensors);
  EXPECT_EQ(way_of(none, no, torch::kCUDA), kSingleTensors);
  EXPECT_THROW(way_of(yes, yes, torch::kCUDA), UsageError);
  EXPECT_FALSE(has_foreach_kernels(torch::kCPU));
  EXPECT_TRUE(has_foreach_kernels(torch::kCUDA));
}

TEST(Optim, AStepOfAdamOver200ParametersCallsFewOperators) {
  const auto of = [](auto optimizer) {
    optimizer.step();  // makes the state
    return operators_of([&] { optimizer.step(); });
  };
  EXPECT_LE(of(Adam(parameters(200), AdamOptions().foreach (true))), 12);
  EXPECT_LE(of(Adam(parameters(200), AdamOptions().fused(true))), 1);
  EXPECT_LE(of(AdamW(parameters(200), AdamWOptions().fused(true).amsgrad(true))), 1);
  EXPECT_LE(of(SGD(parameters(200), SGDOptions(0.1).momentum(0.9).fused(true))), 1);
  EXPECT_GE(of(torch::optim::Adam(parameters(200))), 1600);  // the count counts
}

TEST(Optim, TheLossIsTheClosuresWhichHasGradients) {
  Tensors weights = parameters(1);
  for (const bool is_adam : {false, true}) {
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (is_adam) {
      optimizer = std::make_unique<Adam>(weights);
    } else {
      optimizer = std::make_unique<SGD>(weights, SGDOptions(0.1));
    }
    const torch::NoGradGuard no_grad;
    const Tensor loss = optimizer->step([&] {
      optimizer->zero_grad();
      const Tensor sum = weights[0].square().sum();
      sum.backward();
      return sum;
    });
    EXPECT_GT(loss.item<double>(), weights[0].square().sum().item<double>());
  }
}

TEST(Optim, ImpossibleOptionsAreRefused) {
  const auto sgd = [](const SGDOptions& options) {
    return refused([&] { SGD(parameters(1), options); });
  };
  EXPECT_EQ(sgd(SGDOptions(0.1)), "");
  EXPECT_EQ(sgd(SGDOptions(-0.1)), "Invalid learning rate: -0.1 (at least 0)");
  EXPECT_THAT(sgd(SGDOptions(std::nan(""))), HasSubstr("learning rate"));
  EXPECT_THAT(sgd(SGDOptions().momentum(-1)), HasSubstr("Invalid momentum value"));
  EXPECT_THAT(sgd(SGDOptions().weight_decay(-1)), HasSubstr("Invalid weight_decay value"));
  EXPECT_THAT(sgd(SGDOptions().nesterov(true)), HasSubstr("Nesterov momentum requires"));
  EXPECT_THAT(sgd(SGDOptions().momentum(0.9).dampening(0.1).nesterov(true)),
              HasSubstr("zero dampening"));
  EXPECT_THAT(sgd(SGDOptions().fused(true).foreach (true)), HasSubstr("cannot be `True` together"));

  const auto adam = [](const AdamOptions& options) {
    return refused([&] { AdamW(parameters(1), options); });
  };
  EXPECT_EQ(adam(AdamOptions()), "");
  EXPECT_THAT(adam(AdamOptions(-1)), HasSubstr("Invalid learning rate"));
  EXPECT_THAT(adam(AdamOptions().eps(-1)), HasSubstr("Invalid epsilon value"));
  EXPECT_THAT(adam(AdamOptions().betas({1, 0.9})), HasSubstr("Invalid beta parameter at index 0"));
  EXPECT_THAT(adam(AdamOptions().betas({0.9, -1})), HasSubstr("Invalid beta parameter at index 1"));
  EXPECT_THAT(adam(AdamOptions().weight_decay(-1)), HasSubstr("Invalid weight_decay value"));

  torch::optim::OptimizerParamGroup group(parameters(1), std::make_unique<AdamOptions>(-2));
  EXPECT_THAT(refused([&] { Adam({group}, AdamOptions()); }), HasSubstr("-2"));
}

TEST(Optim, AGroupWithTheOptionsOfAnotherClassIsRefused) {
  using Group = torch::optim::OptimizerParamGroup;
  const Group libtorchs(parameters(1), std::make_unique<torch::optim::AdamOptions>());
  EXPECT_THAT(refused([&] { Adam({libtorchs}, AdamOptions()); }), HasSubstr("another optimizer"));
  Adam later(parameters(1));
  later.add_param_group(libtorchs);
  EXPECT_THAT(refused([&] { later.step(); }), HasSubstr("another optimizer"));
}

TEST(Optim, SparseGradientsAreTakenWhereTheyAreInPython) {
  const auto sparse = [] {
    Tensors weights = parameters(2, {5});
    weights[0].mutable_grad() =
        torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::tensor({1.0f, 2.0f}), {5});
    return weights;
  };
  const auto stepped = [&](const SGDOptions& options) {
    Tensors weights = sparse();
    SGD optimizer(weights, options);
    for (int i = 0; i < 3; ++i) optimizer.step();
    return weights[0].detach();
  };
  const Tensor expected = sparse()[0].detach() - 0.3 * torch::tensor({0, 1, 0, 2, 0});
  EXPECT_TRUE(torch::allclose(stepped(SGDOptions(0.1)), expected));
  EXPECT_TRUE(torch::allclose(stepped(SGDOptions(0.1).foreach (true)), expected));
  EXPECT_TRUE(torch::equal(stepped(SGDOptions(0.1).momentum(0.5)),
                           stepped(SGDOptions(0.1).momentum(0.5).foreach (true))));
  EXPECT_THAT(refused([&] { stepped(SGDOptions(0.1).fused(true)); }),
              HasSubstr("does not support sparse gradients"));

  Tensors weights = sparse();
  const Tensor before = weights[1].detach().clone();
  EXPECT_THAT(refused([&] { Adam(weights).step(); }),
              HasSubstr("Adam does not support sparse gradients"));
  EXPECT_TRUE(torch::equal(weights[1], before));
}

// On the CPU fused operators go through memory; Python's have wrong results here.
TEST(Optim, FusedStepsAreRightWhateverTheStridesOfTheGradient) {
  const auto stepped = [](bool is_fused) {
    Tensors weights = parameters(1, {2, 3, 4, 5});
    weights[0].mutable_grad() = weights[0].grad().contiguous(at::MemoryFormat::ChannelsLast);
    Adam adam(weights, AdamOptions(0.1).fused(is_fused));
    SGD sgd(weights, SGDOptions(0.1).momentum(0.9).fused(is_fused));
    for (int i = 0; i < 2; ++i) {
      adam.step();
      sgd.step();
    }
    return weights[0].detach();
  };
  EXPECT_TRUE(torch::allclose(stepped(true), stepped(false)));
}

TEST(Optim, WhatAFusedStepCannotTakeIsRefused) {
  const auto fused_adam = [](const Tensor& values) {
    const Tensor weight = values.detach().requires_grad_();
    weight.mutable_grad() = torch::ones_like(weight);
    return refused([&] { Adam(Tensors{weight}, AdamOptions().fused(true)).step(); });
  };
  EXPECT_EQ(fused_adam(torch::ones({2}, torch::kBFloat16)), "");
  EXPECT_THAT(fused_adam(torch::ones({2}, torch::kComplexFloat)), HasSubstr("floating point"));
  EXPECT_THAT(fused_adam(torch::ones({2, 6}).slice(1, 0, 3)), HasSubstr("without gaps"));

  Tensors half = {torch::ones({2}, torch::kHalf).requires_grad_()};
  half[0].mutable_grad() = torch::ones({2}, torch::kHalf);
  EXPECT_THAT(refused([&] { SGD(half, SGDOptions(0.1).fused(true)).step(); }),
              HasSubstr("half precision"));
}

TEST(Optim, AParameterThatBeginsLaterIsSteppedByFusedSgdToo) {
  const auto stepped = [](bool is_fused) {
    Tensors weights = parameters(2);
    const Tensor gradient = weights[1].grad().clone();
    weights[1].mutable_grad().reset();
    SGD optimizer(weights, SGDOptions(0.1).momentum(0.9).fused(is_fused));
    optimizer.step();
    weights[1].mutable_grad() = gradient;
    optimizer.step();
    optimizer.step();
    return weights[1].detach();
  };
  EXPECT_TRUE(torch::allclose(stepped(true), stepped(false)));
}

// torch::save() and torch::load().
template <typename Optimizer, typename Options>
void expect_same_bits_from_an_archive(const Options& options) {
  Tensors whole = parameters(3);
  Optimizer uninterrupted(whole, options);
  for (int i = 0; i < 3; ++i) uninterrupted.step();
  std::stringstream archive;
  torch::save(uninterrupted, archive);
  Tensors resumed;
  for (const Tensor& weight : whole) {
    resumed.push_back(weight.detach().clone().requires_grad_());
    resumed.back().mutable_grad() = weight.grad();
  }
  Optimizer other(resumed);
  torch::load(other, archive);
  for (int i = 0; i < 3; ++i) {
    uninterrupted.step();
    other.step();
  }
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(torch::equal(whole[i], resumed[i]));
}

TEST(Optim, AnArchiveHoldsOptionsAndState) {
  expect_same_bits_from_an_archive<SGD>(
      SGDOptions(0.3).momentum(0.9).weight_decay(0.1).maximize(true));
  expect_same_bits_from_an_archive<Adam>(
      AdamOptions(0.3).betas({0.5, 0.6}).amsgrad(true).foreach (true));
  expect_same_bits_from_an_archive<AdamW>(AdamWOptions(0.3).fused(true).maximize(true));
}

TEST(Optim, AnArchiveOfLibTorchsAdamIsRead) {
  Tensors weights = parameters(1);
  torch::optim::Adam libtorchs(weights, torch::optim::AdamOptions(0.3).weight_decay(0.1));
  libtorchs.step();
  libtorchs.step();
  std::stringstream archive;
  torch::save(libtorchs, archive);
  Adam ours(weights, AdamOptions(0.1));
  torch::load(ours, archive);
  const auto& state = static_cast<AdamParamState&>(*ours.state().begin()->second);
  EXPECT_EQ(state.step().item<double>(), 2);
  EXPECT_EQ(ours.param_groups()[0].options().get_lr(), 0.3);
  const Tensor before = weights[0].detach().clone();
  libtorchs.step();
  const Tensor expected = weights[0].detach().clone();
  const torch::NoGradGuard no_grad;
  weights[0].copy_(before);
  ours.step();
  EXPECT_TRUE(torch::allclose(weights[0], expected));
  EXPECT_EQ(state.step().item<double>(), 3);
}

}  // namespace
}  // namespace ddprun::optim
