// What stands beside DistributedDataParallel in a training step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "ddprun/ddp.h"
#include "ddprun/gradients.h"
#include "ddprun/leave.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/sync_batch_norm.h"
#include "tests/unit/worker_lib/drawn.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/group_of_threads.h"

namespace ddprun {
namespace {

using test::drawn;
using torch::Tensor;

Tensor parameter_with(const Tensor& gradient) {
  Tensor parameter = torch::zeros(gradient.sizes(), torch::requires_grad());
  parameter.mutable_grad() = gradient;
  return parameter;
}

TEST(Gradients, AreScaledToTheNormTheyMayHave) {
  const Tensor a = parameter_with(torch::tensor({3.0F, 0.0F}));
  const Tensor b = parameter_with(torch::tensor({0.0F, 4.0F}));
  const Tensor none = torch::zeros({1}, torch::requires_grad());
  EXPECT_FLOAT_EQ(clip_grad_norm_({a, none, b}, 10).item<float>(), 5);
  EXPECT_EQ(a.grad()[0].item<float>(), 3);  // within the limit: not touched
  EXPECT_FLOAT_EQ(clip_grad_norm_({a, none, b}, 1).item<float>(), 5);
  EXPECT_NEAR(a.grad()[0].item<float>(), 0.6, 1e-6);
  EXPECT_NEAR(b.grad()[1].item<float>(), 0.8, 1e-6);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_NEAR(clip_grad_norm_({a, b}, 1, kInfinity).item<float>(), 0.8, 1e-6);
  EXPECT_EQ(clip_grad_norm_({none}, 1).item<float>(), 0);
}

TEST(Gradients, OfTwoValuesForOneElementTheSumCounts) {
  const Tensor indices = torch::tensor({{1, 1}}, torch::kInt64);
  const Tensor sparse =
      parameter_with(torch::sparse_coo_tensor(indices, torch::tensor({3.0F, 1.0F}), {4}));
  EXPECT_FLOAT_EQ(clip_grad_norm_({sparse}, 2).item<float>(), 4);
  EXPECT_NEAR(sparse.grad().to_dense()[1].item<float>(), 2, 1e-5);
  clip_grad_value_({sparse}, 0.5);
  EXPECT_EQ(sparse.grad().to_dense()[1].item<float>(), 0.5F);
}

TEST(Gradients, AreClampedToAValue) {
  const Tensor parameter = parameter_with(torch::tensor({-3.0F, 0.5F, 7.0F}));
  clip_grad_value_({parameter}, 1);
  EXPECT_TRUE(torch::equal(parameter.grad(), torch::tensor({-1.0F, 0.5F, 1.0F})));
}

// C++'s Optimizer::zero_grad() throws on such views.
TEST(Gradients, ThatAreViewsIntoBucketsCanBeCleared) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 2);
    DistributedDataParallel model(linear, context, {.gradient_as_bucket_view = true});
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      zero_grad(model.parameters());
      model(torch::full({1, 3}, context.rank() + 1.0F)).sum().backward();
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), torch::full({2, 3}, 1.5F)));
      EXPECT_TRUE(linear->weight.grad().is_alias_of(linear->bias.grad()));  // one bucket
      optimizer.step();
      EXPECT_THROW(optimizer.zero_grad(), c10::Error);
    }
  });
}

// The reducer, a hook, mixed precision and clipping together: the clipped gradient. The loss is in
// single precision, in which the scaled one has room on every device.
Tensor gradient_of_a_mixed_precision_step(Context& context, torch::Device device) {
  auto linear = std::make_shared<torch::nn::LinearImpl>(8, 4);
  linear->weight.detach().copy_(drawn({4, 8}, 1));
  linear->bias.detach().copy_(drawn({4}, 3));
  linear->to(device);
  const DdpOptions options{.gradient_as_bucket_view = true, .comm_hook = bf16_compress_hook()};
  DistributedDataParallel model(linear, context, options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  GradScaler scaler({.init_scale = 1024});
  Tensor loss;
  {
    const Autocast autocast(device, torch::kHalf);
    loss = model(drawn({5, 8}, 2).to(device)).to(torch::kFloat32).pow(2).mean();
  }
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  clip_grad_norm_(model.parameters(), 1);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  return linear->weight.grad().cpu();
}

TEST(MixedPrecision, AStepWithAHookAndClippingIsSinglePrecisionsButForRounding) {
  test::run_ranks(1, [](Context& context) {
    const Tensor mixed = gradient_of_a_mixed_precision_step(context, torch::kCPU);
    const Tensor weight = drawn({4, 8}, 1).requires_grad_();
    const Tensor bias = drawn({4}, 3).requires_grad_();
    torch::linear(drawn({5, 8}, 2), weight, bias).pow(2).mean().backward();
    clip_grad_norm_({weight, bias}, 1);
    EXPECT_TRUE(torch::allclose(mixed, weight.grad(), 0.02, 0.01));
    EXPECT_GT(mixed.norm().item<float>(), 0.1);
  });
}

TEST(OnAGpu, AMixedPrecisionStepIsTheCpusButForHalfPrecision) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  Context context(Environment{}, {.backend = Backend::kNccl});
  const Tensor on_gpu = gradient_of_a_mixed_precision_step(context, context.device());
  const Tensor on_cpu = gradient_of_a_mixed_precision_step(context, torch::kCPU);
  EXPECT_TRUE(torch::allclose(on_gpu, on_cpu, 0.02, 0.01));
  leave(context);
}

TEST(Autocast, ComputesInHalfPrecisionWhileItLives) {
  torch::nn::Linear linear(4, 4);
  const Tensor input = torch::ones({2, 4});
  {
    const Autocast autocast(torch::kCPU);
    EXPECT_EQ(linear(input).scalar_type(), torch::kBFloat16);
    {
      const Autocast half(torch::kCPU, torch::kHalf);
      EXPECT_EQ(linear(input).scalar_type(), torch::kHalf);
      const Autocast off(torch::kCPU, torch::kHalf, /*is_enabled=*/false);
      EXPECT_EQ(linear(input).scalar_type(), torch::kFloat32);
    }
    EXPECT_EQ(linear(input).scalar_type(), torch::kBFloat16);
    linear(input).sum().backward();
    EXPECT_EQ(linear->weight.grad().scalar_type(), torch::kFloat32);
  }
  EXPECT_EQ(linear(input).scalar_type(), torch::kFloat32);
  EXPECT_THROW(std::ignore = Autocast(torch::kCPU, torch::kFloat32), UsageError);
}

TEST(GradScaler, UnscalesBeforeTheStep) {
  Tensor weight = torch::zeros({2}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 1.0);
  GradScaler scaler({.init_scale = 1024});
  scaler.scale((weight * torch::tensor({1.0F, 2.0F})).sum()).backward();
  EXPECT_EQ(weight.grad()[0].item<float>(), 1024);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(torch::equal(weight.detach(), torch::tensor({-1.0F, -2.0F})));
  EXPECT_EQ(scaler.get_scale(), 1024);
}

TEST(GradScaler, AHalfPrecisionLossHasRoomForTheScale) {
  GradScaler scaler;
  const Tensor scaled = scaler.scale(torch::tensor(2.0).to(torch::kHalf));
  EXPECT_EQ(scaled.scalar_type(), torch::kFloat32);
  EXPECT_EQ(scaled.item<float>(), 131072);
  EXPECT_EQ(scaler.scale(torch::tensor(2.0, torch::kFloat64)).scalar_type(), torch::kFloat64);
}

TEST(GradScaler, SkipsAStepThatIsNotFiniteAndHalvesTheScale) {
  Tensor weight = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 1.0);
  GradScaler scaler({.init_scale = 8, .growth_interval = 2});
  const auto step = [&](float gradient) {
    optimizer.zero_grad();
    scaler.scale((weight * gradient).sum()).backward();
    const bool is_made = scaler.step(optimizer);
    scaler.update();
    return is_made;
  };
  EXPECT_TRUE(step(1));
  EXPECT_FALSE(step(std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(step(std::nanf("")));
  EXPECT_EQ(weight.item<float>(), -1);
  EXPECT_EQ(scaler.get_scale(), 2);
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.get_scale(), 2);  // the count began anew
  EXPECT_TRUE(step(1));
  EXPECT_EQ(scaler.get_scale(), 4);
}

TEST(GradScaler, RefusesCallsInTheWrongOrder) {
  Tensor weight = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 1.0);
  GradScaler scaler;
  EXPECT_THROW(scaler.update(), UsageError);
  scaler.scale(weight.sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_THROW(scaler.unscale_(optimizer), UsageError);
  scaler.step(optimizer);
  EXPECT_THROW(scaler.step(optimizer), UsageError);
  EXPECT_THROW(GradScaler({.growth_factor = 1}), UsageError);
}

TEST(GradScaler, CarriesOnFromItsState) {
  GradScaler scaler({.init_scale = 8, .growth_interval = 5});
  Tensor weight = torch::zeros({1}, torch::requires_grad());
  torch::optim::SGD optimizer({weight}, 1.0);
  scaler.scale(weight.sum()).backward();
  scaler.step(optimizer);
  scaler.update();
  GradScaler other;
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
  EXPECT_EQ(other.get_scale(), 8);
  EXPECT_THAT(other.state_dict(), testing::HasSubstr(R"("_growth_tracker":1)"));
  EXPECT_THROW(other.load_state_dict("{}"), UsageError);
  EXPECT_THROW(other.load_state_dict(R"({"scale":-1,"growth_factor":2,"backoff_factor":0.5,)"
                                     R"("growth_interval":5,"_growth_tracker":0})"),
               UsageError);
  EXPECT_EQ(other.state_dict(), scaler.state_dict());
}

TEST(GradScaler, AllRanksSkipTheStepThatIsBadOnOne) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(1, 1);
    DistributedDataParallel model(linear, context);
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    GradScaler scaler;
    const float input = context.rank() == 1 ? std::numeric_limits<float>::infinity() : 1.0F;
    scaler.scale(model(torch::full({1, 1}, input)).sum()).backward();
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
  });
}

// Of the first dimension, what falls to a rank when ranks have batches of these sizes.
struct Share {
  std::int64_t begin, size;
};
Share share_of(int rank, const std::vector<std::int64_t>& sizes) {
  std::int64_t begin = 0;
  for (int i = 0; i < rank; ++i) begin += sizes[static_cast<std::size_t>(i)];
  return {begin, sizes[static_cast<std::size_t>(rank)]};
}

// In double, so that what is left between the two is the order of a sum: some 1e-15.
TEST(SyncBatchNorm, IsBatchNormOverAllRanksTogether) {
  constexpr double kTolerance = 1e-12;
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{4, 4}, {5, 1, 3}, {6, 0, 2}}) {
    for (const bool is_image : {false, true}) {
      test::run_ranks(static_cast<int>(sizes.size()), [&](Context& context) {
        const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
        const std::vector<std::int64_t> shape = is_image ? std::vector<std::int64_t>{total, 3, 2, 2}
                                                         : std::vector<std::int64_t>{total, 3};
        const Tensor whole = drawn(shape, 1).to(torch::kFloat64) * 3 + 100;
        const Tensor factors = drawn(shape, 2).to(torch::kFloat64);
        const auto close = [&](const Tensor& a, const Tensor& b) {
          return torch::allclose(a, b, kTolerance, kTolerance);
        };

        torch::nn::BatchNorm2d reference(3);
        torch::nn::BatchNorm1d flat_reference(3);
        SyncBatchNorm norm(3, context);
        for (torch::nn::Module* module : std::initializer_list<torch::nn::Module*>{
                 reference.get(), flat_reference.get(), norm.get()}) {
          module->to(torch::kFloat64);
          module->named_parameters()["weight"].detach().copy_(drawn({3}, 3));
          module->named_parameters()["bias"].detach().copy_(drawn({3}, 4));
        }
        const Tensor all = whole.clone().requires_grad_();
        const Tensor expected = is_image ? reference(all) : flat_reference(all);
        (expected * factors).sum().backward();
        const torch::nn::Module& plain =
            is_image ? static_cast<torch::nn::Module&>(*reference) : *flat_reference;

        const Share share = share_of(context.rank(), sizes);
        const auto own_part = [&](const Tensor& tensor) {
          return tensor.narrow(0, share.begin, share.size);
        };
        const Tensor own = own_part(whole).clone().requires_grad_();
        const Tensor output = norm(own);
        (output * own_part(factors)).sum().backward();
        EXPECT_TRUE(close(output, own_part(expected)));
        EXPECT_TRUE(close(own.grad(), own_part(all.grad())));
        for (const char* name : {"weight", "bias"}) {
          Tensor sum = norm->named_parameters()[name].grad().clone();
          context.all_reduce(sum);
          EXPECT_TRUE(close(sum, plain.named_parameters()[name].grad())) << name;
        }
        for (const auto& buffer : plain.named_buffers()) {
          EXPECT_TRUE(close(norm->named_buffers()[buffer.key()], buffer.value())) << buffer.key();
        }
        norm->eval();
        EXPECT_EQ(norm(own_part(whole)).sizes(), own_part(whole).sizes());
      });
    }
  }
}

// Of the inputs' type or with float parameters beside half precision's inputs, as under Autocast.
TEST(SyncBatchNorm, WorksInEveryPrecision) {
  const std::tuple<torch::ScalarType, torch::ScalarType, double> cases[] = {
      {torch::kFloat32, torch::kFloat32, 1e-5},
      {torch::kBFloat16, torch::kFloat32, 4e-2},
      {torch::kBFloat16, torch::kBFloat16, 4e-2},
      {torch::kHalf, torch::kFloat32, 5e-3}};
  for (const auto& [input_type, weight_type, tolerance] : cases) {
    test::run_ranks(
        2, [&, type = input_type, weights = weight_type, close = tolerance](Context& context) {
          const Tensor whole = drawn({8, 3, 2, 2}, 1).to(type);
          const Tensor all = whole.to(torch::kFloat64).requires_grad_();
          torch::nn::BatchNorm2d reference(3);
          reference->to(torch::kFloat64);
          const Tensor expected = reference(all);
          expected.pow(3).sum().backward();

          SyncBatchNorm norm(3, context);
          norm->to(weights);
          const auto own_part = [&](const Tensor& tensor) {
            return tensor.narrow(0, 4 * context.rank(), 4);
          };
          const Tensor own = own_part(whole).clone().requires_grad_();
          const Tensor output = norm(own);
          EXPECT_EQ(output.scalar_type(), type);
          output.pow(3).sum().backward();
          const auto in_double = [](const Tensor& tensor) { return tensor.to(torch::kFloat64); };
          EXPECT_TRUE(torch::allclose(in_double(output), own_part(expected), close, close));
          EXPECT_TRUE(
              torch::allclose(in_double(own.grad()), own_part(all.grad()), 8 * close, 8 * close));
          EXPECT_EQ(norm->weight.grad().scalar_type(), weights);
        });
  }
}

TEST(SyncBatchNorm, MayHaveNoWeights) {
  test::run_ranks(2, [](Context& context) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(5).affine(false), context);
    torch::nn::BatchNorm1d reference(torch::nn::BatchNormOptions(5).affine(false));
    const Tensor whole = drawn({8, 5}, 1).requires_grad_();
    const Tensor own = whole.detach().narrow(0, 4 * context.rank(), 4).clone().requires_grad_();
    reference(whole).pow(3).sum().backward();
    norm(own).pow(3).sum().backward();
    EXPECT_TRUE(
        torch::allclose(own.grad(), whole.grad().narrow(0, 4 * context.rank(), 4), 1e-4, 1e-4));
  });
}

TEST(SyncBatchNorm, RefusesASecondDerivative) {
  test::run_ranks(2, [](Context& context) {
    SyncBatchNorm norm(3, context);
    const Tensor input = drawn({4, 3}, 1).requires_grad_();
    const Tensor gradient = torch::autograd::grad({norm(input).pow(3).sum()}, {input}, {},
                                                  /*retain_graph=*/true, /*create_graph=*/true)[0];
    try {
      gradient.square().sum().backward();
      ADD_FAILURE() << "it gave something";
    } catch (const std::exception& error) {
      EXPECT_NE(std::string(error.what()).find("SyncBatchNorm has no second derivative"),
                std::string::npos);
    }
  });
}

TEST(SyncBatchNorm, NeedsTwoValuesAndItsNumberOfFeatures) {
  test::run_ranks(2, [](Context& context) {
    SyncBatchNorm norm(3, context);
    EXPECT_THROW(norm(torch::ones({1 - context.rank(), 3})), UsageError);
    EXPECT_THROW(norm(torch::ones({4, 2})), c10::Error);
  });
}

}  // namespace
}  // namespace ddprun
