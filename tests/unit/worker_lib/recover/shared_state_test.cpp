#include "worker_lib/recover/shared_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker_lib/group_of_threads.h"
#include "worker_lib/checkpoint/state_arrays.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 3;

// A model with a parameter beside it, and an optimizer that has made a step.
struct Training {
  Training() {
    torch::NoGradGuard no_grad;
    for (const torch::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
    optimizer.zero_grad();
    torch::AutoGradMode with_gradients(true);
    (model->forward(torch::linspace(-1, 1, 15).view({5, 3})).sum() * scale.sum()).backward();
    optimizer.step();
  }
  NamedTensors state() { return state_of(with_parameters_beside(*model, optimizer), optimizer); }
  std::vector<torch::Tensor> all_parameters() const {
    std::vector<torch::Tensor> all = model->parameters();
    all.push_back(scale);
    return all;
  }

  torch::nn::Sequential model{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
                              torch::nn::Linear(4, 2)};
  torch::Tensor scale = torch::ones({2}).requires_grad_();
  torch::optim::Adam optimizer{all_parameters(), torch::optim::AdamOptions(0.1)};
};

TEST(SharedState, HasParametersThatOnlyTheOptimizerHas) {
  Training training;
  ASSERT_EQ(parameters_beside(*training.model, training.optimizer).size(), 1U);
  const NamedTensors state = training.state();
  EXPECT_TRUE(state.at("model.of_optimizer_only.0").is_same(training.scale));
  EXPECT_EQ(state.at("optimizer.of_optimizer_only.0.exp_avg").numel(), 2);
  EXPECT_EQ(state.count("model.1.running_mean"), 1U);
  EXPECT_EQ(training.model->parameters().size(), 6U) << "the module itself is as it was";
}

TEST(SharedState, SparseTensorsAreNamed) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD optimizer(embedding->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  EXPECT_THAT(first_sparse(state_of(*embedding, optimizer)), IsEmpty());
  embedding->forward(torch::tensor({1, 3})).sum().backward();
  optimizer.step();
  EXPECT_THAT(first_sparse(state_of(*embedding, optimizer)),
              HasSubstr("optimizer.weight.momentum_buffer is a sparse tensor"));
}

// The lowest bit of one element differs on one rank: one of the calls says so, on all ranks.
TEST(SharedStateComparison, FindsEachElement) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : Training().state()) names.push_back(name);
  run_ranks(kRanks, [&](Context& context) {
    Training training;
    NamedTensors state = training.state();
    for (std::size_t i = 0; i < names.size(); ++i) {
      torch::Tensor& original = state.at(names[i]);
      const torch::Tensor kept = original;
      const int rank = static_cast<int>(i) % kRanks;
      for (const std::int64_t element : {std::int64_t{0}, kept.numel() / 2, kept.numel() - 1}) {
        original = kept.detach().clone();
        if (context.rank() == rank) {
          static_cast<unsigned char*>(
              original.mutable_data_ptr())[static_cast<std::size_t>(element) *
                                           original.element_size()] ^= 1;
        }
        SharedStateComparison comparison(/*bytes_at_once=*/64);
        std::string found;
        for (std::size_t call = 0; call < SharedStateComparison::kCallsMax; ++call) {
          const auto result = comparison.next(context, {}, [&] { return state; });
          if (result.difference.empty()) continue;
          EXPECT_TRUE(result.is_of_tensors);
          EXPECT_THAT(found, IsEmpty());
          found = result.difference;
        }
        EXPECT_THAT(found, HasSubstr(names[i] + " is "));
        EXPECT_THAT(found, HasSubstr("on rank " + std::to_string(rank)));
      }
      original = kept;
    }
  });
}

TEST(SharedStateComparison, FindsAValueAtAnyCall) {
  run_ranks(kRanks, [](Context& context) {
    Training training;
    SharedStateComparison comparison;
    for (int call = 0; call < 12; ++call) {
      const bool is_other = call == 10 && context.rank() == 2;
      const auto result =
          comparison.next(context, {{"option lr of parameter group 0", is_other ? "0.2" : "0.1"}},
                          [&] { return training.state(); });
      EXPECT_EQ(result.difference,
                call == 10
                    ? "option lr of parameter group 0 is 0.1 on ranks 0 and 1 and 0.2 on rank 2"
                    : "");
      EXPECT_FALSE(result.is_of_tensors);
    }
  });
}

TEST(SharedStateComparison, LooksAtTensorsInTheFirstCallsOnly) {
  run_ranks(2, [](Context& context) {
    Training training;
    for (const auto& [bytes_at_once, expected] :
         {std::pair{std::size_t{64} << 20, 1}, {std::size_t{200}, 3}, {std::size_t{1}, 8}}) {
      SharedStateComparison comparison(bytes_at_once);
      int asked = 0;
      for (int call = 0; call < 12; ++call) {
        const auto result = comparison.next(context, {}, [&] {
          ++asked;
          return training.state();
        });
        EXPECT_THAT(result.difference, IsEmpty());
      }
      EXPECT_EQ(asked, expected);
    }
  });
}

TEST(SharedStateComparison, TellsOfAStateThatARankLacks) {
  run_ranks(2, [](Context& context) {
    Training training;
    NamedTensors state = training.state();
    if (context.rank() == 1) state.erase("optimizer.2.weight.exp_avg");
    SharedStateComparison comparison;
    EXPECT_THAT(comparison.next(context, {}, [&] { return state; }).difference,
                HasSubstr("optimizer.2.weight.exp_avg on rank 0"));
  });
}

}  // namespace
}  // namespace ddprun::test
