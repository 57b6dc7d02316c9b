#include "ddprun/ddp.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <array>
#include <mutex>

#include "ddprun/metrics.h"
#include "group_of_threads.h"

namespace ddprun {
namespace {

using torch::Tensor;

struct Net : torch::nn::Module {
  Net() {
    used = register_module("used", torch::nn::Linear(3, 2));
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
    maybe = register_module("maybe", torch::nn::Linear(3, 2));
  }
  std::pair<Tensor, std::vector<Tensor>> forward(const Tensor& x, bool use_all = true) {
    Tensor y = norm(used(x));
    if (use_all) y = y + maybe(x);
    return {y, {y * 2}};
  }
  torch::nn::Linear used{nullptr}, maybe{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// Each rank's own values, so that taking over rank 0's shows. Seeding and drawing are one step: the
// generator is the process', and the ranks are threads.
std::shared_ptr<Net> net_of(const Context& context) {
  static std::mutex generator;
  const std::scoped_lock lock(generator);
  torch::manual_seed(static_cast<std::uint64_t>(context.rank()));
  return std::make_shared<Net>();
}

Tensor inputs_of(int rank) { return torch::arange(12, torch::kFloat32).view({4, 3}) * (rank + 1); }

TEST(Ddp, TakesOverRankZerosParametersAndBuffers) {
  test::run_ranks(2, [](Context& context) {
    auto net = net_of(context);
    {
      const torch::NoGradGuard no_grad;
      net->norm->running_mean.fill_(static_cast<double>(context.rank() + 1));
    }
    const DistributedDataParallel model(net, context);
    for (const auto& tensor : {net->used->weight.detach(), net->norm->running_mean}) {
      Tensor reference = tensor.clone();
      context.broadcast(reference);
      EXPECT_TRUE(torch::equal(tensor, reference));
    }
    EXPECT_EQ(net->norm->running_mean[0].item<float>(), 1);
  });
}

TEST(Ddp, GradientsAreTheAverageOverRanks) {
  for (const int world_size : {1, 2, 3}) {
    test::run_ranks(world_size, [&](Context& context) {
      auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
      DistributedDataParallel model(linear, context);
      model(inputs_of(context.rank())).sum().backward();
      Tensor expected = torch::zeros({1, 3});
      for (int rank = 0; rank < world_size; ++rank) expected += inputs_of(rank).sum(0, true);
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), expected / world_size));
    });
  }
}

TEST(Ddp, AccumulatesWithoutSynchronizingUnderNoSync) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
    DistributedDataParallel model(linear, context);
    const Tensor own = inputs_of(context.rank());
    {
      const auto no_sync = model.no_sync();
      model(own).sum().backward();
      EXPECT_TRUE(torch::allclose(linear->weight.grad(), own.sum(0, true)));
    }
    model(own).sum().backward();
    const Tensor average = (inputs_of(0) + inputs_of(1)).sum(0, true);  // 2 steps / 2 ranks
    EXPECT_TRUE(torch::allclose(linear->weight.grad(), average));
  });
}

TEST(Ddp, FindsParametersThatAForwardDidNotUse) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(net_of(context), context, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const bool use_all = step == 1;
      model->zero_grad();
      model(inputs_of(context.rank()), use_all).first.sum().backward();
      EXPECT_EQ(model->maybe->weight.grad().defined(), use_all);
      EXPECT_TRUE(model->used->weight.grad().defined());
    }
  });
}

TEST(Ddp, AnUnusedParameterIsNamedWhenTheyAreNotLookedFor) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(net_of(context), context);
    model(inputs_of(context.rank()), /*use_all=*/false).first.sum().backward();
    try {
      model(inputs_of(context.rank()), /*use_all=*/false);
      ADD_FAILURE() << "the second forward was accepted";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("find_unused_parameters"));
    }
  });
}

TEST(Ddp, BuffersFollowRankZero) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(net_of(context), context);
    for (int step = 0; step < 2; ++step) {
      model(inputs_of(context.rank())).first.sum().backward();
    }
    // Each rank's forward updated the mean with its own batch; the next forward begins with rank
    // 0's.
    const torch::NoGradGuard no_grad;
    model->eval();
    model(inputs_of(context.rank()));
    Tensor reference = model->norm->running_mean.clone();
    context.broadcast(reference);
    EXPECT_TRUE(torch::equal(model->norm->running_mean, reference));
  });
}

TEST(Ddp, ModelsOfDifferentShapeAreRefused) {
  std::array<bool, 2> threw{};
  test::run_ranks(2, [&](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1 + context.rank());
    try {
      const DistributedDataParallel model(linear, context);
    } catch (const std::exception&) {  // rank 0's may be that rank 1 is gone
      threw[static_cast<std::size_t>(context.rank())] = true;
    }
  });
  EXPECT_TRUE(threw[1]);
}

TEST(Ddp, AModuleWithoutParametersIsRefused) {
  test::run_ranks(1, [](Context& context) {
    EXPECT_THROW(DistributedDataParallel(std::make_shared<torch::nn::ReLUImpl>(), context),
                 UsageError);
  });
}

TEST(Ddp, TakesAModuleHolder) {
  test::run_ranks(1, [](Context& context) {
    DistributedDataParallel model(torch::nn::Linear(3, 1), context);
    EXPECT_EQ(model(torch::ones({2, 3})).size(0), 2);
  });
}

// Draws of its own: the ranks are threads, and the process' generator is shared.
Tensor drawn(at::IntArrayRef size, std::uint64_t seed) {
  return torch::randn(size, at::detail::createCPUGenerator(seed));
}

std::vector<Tensor> copies_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : parameters) copies.push_back(parameter.detach().clone());
  return copies;
}

bool have_equal_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return torch::equal(x, y); });
}

// Trains for `steps`, and at `stop_after` carries what a checkpoint would hold over to a new
// DistributedDataParallel; returns the final parameters.
enum class Layout { kCarried, kForgotten };
std::vector<Tensor> trained(Context& context, const DdpOptions& options, int steps, int stop_after,
                            Layout layout) {
  auto net = std::make_shared<torch::nn::SequentialImpl>(
      torch::nn::Linear(7, 33), torch::nn::Tanh(), torch::nn::Linear(33, 19), torch::nn::Tanh(),
      torch::nn::Linear(19, 5));
  std::uint64_t seed = 1;
  for (Tensor& parameter : net->parameters()) {
    const torch::NoGradGuard no_grad;
    parameter.copy_(drawn(parameter.sizes(), seed++) / 3);
  }
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto model =
      std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(net, context, options);
  for (int step = 0; step < steps; ++step) {
    if (step == stop_after) {
      const std::string state = model->save_state();
      model = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(net, context,
                                                                                   options);
      if (layout == Layout::kCarried) model->load_state(state);
    }
    net->zero_grad();
    const Tensor inputs = drawn({6, 7}, static_cast<std::uint64_t>(1000 * step + context.rank()));
    const Tensor outputs = net->forward(inputs);
    torch::mse_loss((*model)(inputs), outputs.detach().roll(1) + 1).backward();
    optimizer.step();
  }
  return copies_of(net->parameters());
}

TEST(Ddp, AResumedRunHasTheSameBitsWithTheLayoutOfTheInterruptedOne) {
  constexpr int kSteps = 6;
  for (const int world_size : {3, 4}) {
    for (const std::int64_t bucket_bytes : {std::int64_t{1} << 20, std::int64_t{700}}) {
      test::run_ranks(world_size, [&](Context& context) {
        const DdpOptions options{.bucket_cap_bytes = bucket_bytes,
                                 .first_bucket_bytes = bucket_bytes};
        const auto expected = trained(context, options, kSteps, kSteps, Layout::kCarried);
        // After no step there is nothing to carry over, after one the reducer itself has not used
        // its new layout yet.
        for (const int stop_after : {0, 1, 2, 4}) {
          EXPECT_TRUE(have_equal_bits(
              trained(context, options, kSteps, stop_after, Layout::kCarried), expected))
              << world_size << " ranks, stopped after " << stop_after;
        }
        // What the layout is good for: without it the sums are made in another order.
        EXPECT_FALSE(
            have_equal_bits(trained(context, options, kSteps, 2, Layout::kForgotten), expected))
            << world_size << " ranks";
      });
    }
  }
}

TEST(Ddp, TheLayoutStaysAsItWasLoaded) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
    DistributedDataParallel model(linear, context);
    EXPECT_EQ(model.save_state(), R"({"buckets":[]})");
    // Not the one that a first step would find.
    const std::string state = R"({"buckets":[[0],[1]]})";
    model.load_state(state);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(model.save_state(), state);
      model(inputs_of(context.rank())).sum().backward();
    }
    EXPECT_THROW(model.load_state(R"({"buckets":[[0]]})"), UsageError);
    EXPECT_EQ(model.save_state(), state);
    // Back to a state from before the first step.
    model.load_state(R"({"buckets":[]})");
    model(inputs_of(context.rank())).sum().backward();
    EXPECT_EQ(model.save_state(), R"({"buckets":[[1,0]]})");
  });
}

TEST(Ddp, ALayoutThatMixesTypesIsRefusedByName) {
  test::run_ranks(1, [](Context& context) {
    struct Mixed : torch::nn::Module {
      Mixed() {
        a = register_parameter("a", torch::ones({2}));
        b = register_parameter("b", torch::ones({2}, torch::kFloat64));
      }
      Tensor forward(const Tensor& x) { return a * x + b; }
      Tensor a, b;
    };
    DistributedDataParallel model(std::make_shared<Mixed>(), context);
    try {
      model.load_state(R"({"buckets":[[0,1]]})");
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("puts a and b into one bucket"));
    }
  });
}

TEST(Metrics, MeanUsesTheTrueNumberOfSamples) {
  // 5, 2 and no samples: the mean of the seven values, not of the ranks' means.
  const std::vector<std::vector<double>> values = {{1, 2, 3, 4, 5}, {10, 20}, {}};
  test::run_ranks(3, [&](Context& context) {
    Mean mean;
    for (const double value : values[static_cast<std::size_t>(context.rank())]) mean.add(value, 1);
    EXPECT_DOUBLE_EQ(mean.value(context), 45.0 / 7);
  });
}

TEST(Metrics, MeanOfNothingIsNotANumber) {
  test::run_ranks(2, [](Context& context) { EXPECT_TRUE(std::isnan(Mean().value(context))); });
}

TEST(Context, CollectivesAreDefinedForAnyWorld) {
  for (const int world_size : {1, 3}) {
    test::run_ranks(world_size, [&](Context& context) {
      context.barrier();
      EXPECT_EQ(context.all_reduce_sum(context.rank() + 1.0), world_size * (world_size + 1) / 2.0);
      const Tensor tensor = torch::full({2}, context.rank() + 1);
      context.all_reduce(tensor, c10d::ReduceOp::MAX);
      EXPECT_EQ(tensor[0].item<int>(), world_size);
      const int last = world_size - 1;
      EXPECT_EQ(context.broadcast(std::string("from ") + std::to_string(context.rank()), last),
                "from " + std::to_string(last));
      EXPECT_EQ(context.broadcast(std::string(context.rank() == 0 ? "" : "x")), "");
      EXPECT_EQ(context.is_distributed(), world_size > 1);
      context.leave();
    });
  }
}

TEST(Context, AnUnknownBackendIsRefused) {
  EXPECT_THROW(backend_from("mpi"), UsageError);
  EXPECT_EQ(backend_from("gloo"), Backend::kGloo);
}

TEST(Context, ARankThatNeverComesIsATimeoutThatNamesThePlace) {
  Environment environment;
  environment.world_size = 2;
  environment.master_addr = "nowhere.invalid";
  environment.master_port = 1;
  ContextOptions options{.backend = Backend::kGloo};
  options.join_timeout = std::chrono::milliseconds(200);
  try {
    const Context context(environment, c10::make_intrusive<c10d::HashStore>(), options);
    ADD_FAILURE() << "joined alone";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), testing::HasSubstr("nowhere.invalid:1"));
  }
}

}  // namespace
}  // namespace ddprun
