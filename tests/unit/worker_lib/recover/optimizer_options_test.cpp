#include "worker_lib/recover/optimizer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/output-archive.h>

#include <sstream>
#include <string>
#include <typeinfo>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/optim.h"

namespace ddprun {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

std::vector<torch::Tensor> parameters() { return {torch::ones({2}), torch::ones({3})}; }

// All options of a class, as it writes them itself.
std::string archived(torch::optim::Optimizer& optimizer) {
  std::ostringstream text;
  for (auto& group : optimizer.param_groups()) {
    torch::serialize::OutputArchive archive;
    group.options().serialize(archive);
    archive.save_to(text);
  }
  return text.str();
}

template <typename Optimizer, typename Options>
void expect_all_options_come_along(const Options& options) {
  SCOPED_TRACE(typeid(Options).name());
  Optimizer one(parameters(), options);
  Optimizer other(parameters(), Options(1.0));
  ASSERT_TRUE(are_options_known(one));
  ASSERT_NE(archived(one), archived(other));
  std::string bytes;
  ByteWriter writer(bytes);
  append_options(writer, one);
  ByteReader reader(bytes);
  restore_options(reader, other);
  EXPECT_EQ(reader.left(), 0U);
  EXPECT_EQ(archived(one), archived(other));
  EXPECT_EQ(described_options(one), described_options(other));
}

TEST(OptimizerOptions, AllComeAlong) {
  expect_all_options_come_along<torch::optim::SGD>(
      torch::optim::SGDOptions(0.3).momentum(0.5).weight_decay(0.2).nesterov(true));
  expect_all_options_come_along<torch::optim::SGD>(
      torch::optim::SGDOptions(0.3).momentum(0.5).dampening(0.1));
  expect_all_options_come_along<torch::optim::Adam>(
      torch::optim::AdamOptions(0.3).betas({0.4, 0.5}).eps(1e-3).weight_decay(0.2).amsgrad(true));
  expect_all_options_come_along<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.3).betas({0.4, 0.5}).eps(1e-3).weight_decay(0.2).amsgrad(true));
  expect_all_options_come_along<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.3)
                                                           .alpha(0.4)
                                                           .eps(1e-3)
                                                           .weight_decay(0.2)
                                                           .momentum(0.5)
                                                           .centered(true));
  expect_all_options_come_along<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.3)
                                                           .lr_decay(0.1)
                                                           .weight_decay(0.2)
                                                           .initial_accumulator_value(0.5)
                                                           .eps(1e-3));
  expect_all_options_come_along<optim::SGD>(
      optim::SGDOptions(0.3).momentum(0.5).weight_decay(0.2).nesterov(true).maximize(true).foreach (
          true));
  expect_all_options_come_along<optim::SGD>(
      optim::SGDOptions(0.3).momentum(0.5).dampening(0.1).fused(true));
  expect_all_options_come_along<optim::Adam>(optim::AdamOptions(0.3)
                                                 .betas({0.4, 0.5})
                                                 .eps(1e-3)
                                                 .weight_decay(0.2)
                                                 .amsgrad(true)
                                                 .maximize(true)
                                                 .foreach (false));
  expect_all_options_come_along<optim::AdamW, optim::AdamOptions>(
      optim::AdamOptions(0.3).weight_decay(0.2).fused(true));
}

TEST(OptimizerOptions, AreNamedWithTheirGroup) {
  using torch::optim::OptimizerParamGroup;
  torch::optim::SGD optimizer(
      {OptimizerParamGroup({torch::ones({2})}), OptimizerParamGroup({torch::ones({2})})},
      torch::optim::SGDOptions(0.1));
  optimizer.param_groups()[1].options().set_lr(0.05);
  const ModelDescription described = described_options(optimizer);
  EXPECT_THAT(described.front(), Pair("option lr of parameter group 0", "0.1"));
  EXPECT_THAT(described, Contains(Pair("option lr of parameter group 1", "0.05")));
  EXPECT_THAT(described, Contains(Pair("option nesterov of parameter group 1", "false")));
}

TEST(OptimizerOptions, OfOtherParameterGroupsAreRefused) {
  torch::optim::SGD one(parameters(), 0.1);
  torch::optim::SGD other(parameters(), 0.1);
  other.add_param_group(torch::optim::OptimizerParamGroup({torch::ones({2})}));
  std::string bytes;
  ByteWriter writer(bytes);
  append_options(writer, other);
  ByteReader reader(bytes);
  EXPECT_THAT([&] { restore_options(reader, one); },
              ThrowsMessage<UsageError>(HasSubstr("has 1 parameter groups, and had 2")));
}

TEST(OptimizerOptions, OfAnotherClassAreNotKnown) {
  torch::optim::LBFGS optimizer(parameters(), 0.1);
  EXPECT_FALSE(are_options_known(optimizer));
}

}  // namespace
}  // namespace ddprun
