#include "ddprun/ddp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "ddprun/data_loader.h"
#include "ddprun/gradients.h"
#include "ddprun/metrics.h"
#include "tests/unit/worker_lib/drawn.h"
#include "tests/unit/worker_lib/group_of_threads.h"

namespace ddprun {
namespace {

using test::drawn;
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

// What `call` throws as a UsageError.
template <typename Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Ddp, AnUnusedParameterIsNamedWhenTheyAreNotLookedFor) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(net_of(context), context);
    const auto step = [&] { return model(inputs_of(context.rank()), /*use_all=*/false).first; };
    step().sum().backward();
    EXPECT_THAT(refusal_of(step),
                testing::HasSubstr("no gradient on rank " + std::to_string(context.rank()) +
                                   ": maybe.weight, maybe.bias; use all of them"));
  });
}

// Of two outputs the loss may use one only: without a node that joins them the reducer would wait
// for the other's parameters.
TEST(Ddp, AnOutputThatTheLossDoesNotUseIsNoHindrance) {
  struct TwoHeads : torch::nn::Module {
    TwoHeads() {
      a = register_module("a", torch::nn::Linear(3, 2));
      b = register_module("b", torch::nn::Linear(3, 2));
    }
    std::map<std::string, Tensor> forward(const Tensor& x) { return {{"a", a(x)}, {"b", b(x)}}; }
    torch::nn::Linear a{nullptr}, b{nullptr};
  };
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(std::make_shared<TwoHeads>(), context,
                                  {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      // In the middle step rank 1 uses b too, so that all ranks have half of its gradient.
      const bool uses_b = step == 1 && context.rank() == 1;
      auto heads = model(inputs_of(context.rank()));
      (uses_b ? heads["a"].sum() + heads["b"].sum() : heads["a"].sum()).backward();
      const Tensor average = (inputs_of(0) + inputs_of(1)).sum(0) / 2;
      EXPECT_TRUE(torch::allclose(model->a->weight.grad()[0], average));
      EXPECT_EQ(model->b->weight.grad().defined(), step == 1);
      if (step == 1) {
        EXPECT_TRUE(torch::allclose(model->b->weight.grad()[0], inputs_of(1).sum(0) / 2));
      }
    }
  });
}

TEST(Ddp, AnOutputOfAnUnknownTypeIsRefusedWithTheWayOut) {
  struct Opaque {
    Tensor tensor;
  };
  struct Wraps : torch::nn::Module {
    Wraps() { linear = register_module("linear", torch::nn::Linear(3, 2)); }
    Opaque forward(const Tensor& x) { return {linear(x)}; }
    torch::nn::Linear linear{nullptr};
  };
  test::run_ranks(1, [](Context& context) {
    DistributedDataParallel model(std::make_shared<Wraps>(), context,
                                  {.find_unused_parameters = true});
    EXPECT_THAT(refusal_of([&] { model(inputs_of(0)); }), testing::HasSubstr("for_each_tensor"));
    DistributedDataParallel plain(std::make_shared<Wraps>(), context);
    EXPECT_EQ(plain(inputs_of(0)).tensor.size(0), 4);
  });
}

// Types of a user's, one for each way to show its tensors, and one without any.
namespace mine {
struct Free {
  Tensor tensor;
};
void for_each_tensor(Free& value, const TensorVisitor& visit) { visit(value.tensor); }
struct Member {
  Tensor tensor;
  template <typename F>
  void for_each_tensor(F& f) {
    f(tensor);
  }
};
struct Opaque {};
}  // namespace mine

template <typename Output>
struct Gives : torch::nn::Module {
  explicit Gives(std::function<Output(const Tensor&)> wrap_) : wrap(std::move(wrap_)) {
    used = register_module("used", torch::nn::Linear(3, 2));
    maybe = register_module("maybe", torch::nn::Linear(3, 2));
  }
  Output forward(const Tensor& x) { return wrap(used(x)); }
  std::function<Output(const Tensor&)> wrap;
  torch::nn::Linear used{nullptr}, maybe{nullptr};
};

template <typename Output>
void expect_seen(Context& context, std::function<Output(const Tensor&)> wrap,
                 std::function<Tensor(Output&)> unwrap) {
  for (const DdpOptions& options :
       {DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    DistributedDataParallel model(std::make_shared<Gives<Output>>(wrap), context, options);
    for (int step = 0; step < 3; ++step) {
      zero_grad(model.parameters());
      auto output = model(inputs_of(0));
      unwrap(output).sum().backward();
      EXPECT_TRUE(model->used->weight.grad().defined());
      EXPECT_FALSE(model->maybe->weight.grad().defined());
    }
  }
}

// This file includes data_loader.h, which has to find the tensors of a batch.
TEST(Ddp, TheTensorsOfAnyOutputAreFound) {
  test::run_ranks(1, [](Context& context) {
    expect_seen<mine::Free>(
        context, [](const Tensor& x) { return mine::Free{x}; }, [](auto& y) { return y.tensor; });
    expect_seen<mine::Member>(
        context, [](const Tensor& x) { return mine::Member{x}; }, [](auto& y) { return y.tensor; });
    expect_seen<std::array<Tensor, 1>>(
        context, [](const Tensor& x) { return std::array{x}; }, [](auto& y) { return y[0]; });
    expect_seen<std::unordered_map<std::string, mine::Free>>(
        context,
        [](const Tensor& x) {
          return std::unordered_map<std::string, mine::Free>{{"x", {x}}};
        },
        [](auto& y) { return y.at("x").tensor; });
    using Mixed = std::tuple<std::optional<Tensor>, std::vector<bool>, std::string_view, int>;
    expect_seen<Mixed>(
        context,
        [](const Tensor& x) {
          return Mixed{x, {true, false}, "text", 1};
        },
        [](auto& y) { return *std::get<0>(y); });
  });
}

TEST(Ddp, AnOutputWithAPartOfAnUnknownTypeIsRefusedOnlyWhereItMustBeSeen) {
  test::run_ranks(1, [](Context& context) {
    using Output = std::pair<Tensor, std::vector<mine::Opaque>>;
    const auto net = std::make_shared<Gives<Output>>([](const Tensor& x) { return Output{x, {}}; });
    DistributedDataParallel plain(net, context);
    EXPECT_EQ(plain(inputs_of(0)).first.size(0), 4);
    DistributedDataParallel model(net, context, {.find_unused_parameters = true});
    EXPECT_THAT(refusal_of([&] { model(inputs_of(0)); }), testing::HasSubstr("for_each_tensor"));
    DistributedDataParallel silent(std::make_shared<Gives<void>>([](const Tensor&) {}), context);
    silent(inputs_of(0));
  });
}

TEST(Ddp, AStaticGraphsFirstStepIsMadeByAllRanksTogether) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(torch::nn::Linear(3, 2), context, {.static_graph = true});
    const auto step = [&] { model(inputs_of(context.rank())).sum().backward(); };
    EXPECT_TRUE(model.must_synchronize());
    {
      const auto no_sync = model.no_sync();
      EXPECT_THAT(refusal_of(step), testing::HasSubstr("first backward must be synchronized"));
    }
    EXPECT_THAT(refusal_of([&] { model.join(step); }), testing::HasSubstr("before join()"));
    step();
    EXPECT_FALSE(model.must_synchronize());
    for (int i = 0; i < 2; ++i) {
      zero_grad(model.parameters());
      {
        const auto no_sync = model.no_sync();
        step();
      }
      step();
      for (const Tensor& other : context.all_gather(model->weight.grad())) {
        EXPECT_TRUE(torch::equal(other, model->weight.grad()));
      }
    }
  });
}

TEST(Ddp, AParameterThatLiesOtherwiseInMemoryOnARankIsNamed) {
  test::run_ranks(2, [](Context& context) {
    torch::nn::Conv2d conv(torch::nn::Conv2dOptions(2, 3, 3));
    if (context.rank() == 1) {
      conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    }
    EXPECT_THAT(refusal_of([&] { DistributedDataParallel(conv, context); }),
                AllOf(testing::HasSubstr("weight"), testing::HasSubstr("strides")));
  });
}

TEST(Ddp, AStaticGraphFindsUnusedParametersOnceAndAllowsOneToBeUsedTwice) {
  struct Twice : torch::nn::Module {
    Twice() {
      unused = register_module("unused", torch::nn::Linear(3, 3));
      twice = register_module("twice", torch::nn::Linear(3, 3));
    }
    Tensor forward(const Tensor& x) { return twice(twice(x)); }
    torch::nn::Linear unused{nullptr}, twice{nullptr};
  };
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(std::make_shared<Twice>(), context, {.static_graph = true});
    const auto expected = std::make_shared<Twice>();
    for (std::size_t i = 0; i < expected->parameters().size(); ++i) {
      expected->parameters()[i].detach().copy_(model.parameters()[i].detach());
    }
    (expected->forward(inputs_of(0)).sum() + expected->forward(inputs_of(1)).sum()).backward();
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      model(inputs_of(context.rank())).sum().backward();
      EXPECT_FALSE(model->unused->weight.grad().defined());
      EXPECT_TRUE(torch::allclose(model->twice->weight.grad(), expected->twice->weight.grad() / 2));
    }
  });
}

TEST(Ddp, SparseGradientsAreAveragedWithoutBecomingDense) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 2).sparse(true)), context);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model(torch::tensor({context.rank(), 3})).sum().backward();
      const Tensor gradient = model->weight.grad();
      ASSERT_TRUE(gradient.is_sparse());
      EXPECT_TRUE(torch::equal(gradient.to_dense().select(1, 0),
                               torch::tensor({0.5F, 0.5F, 0.0F, 1.0F, 0.0F})));
    }
  });
}

TEST(Ddp, AParameterThatModulesShareCountsOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      in = register_module("in", torch::nn::Linear(3, 3));
      out = register_module("out", in);
    }
    Tensor forward(const Tensor& x) { return out(in(x)); }
    torch::nn::Linear in{nullptr}, out{nullptr};
  };
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(std::make_shared<Tied>(), context);
    model(inputs_of(context.rank())).sum().backward();
    EXPECT_EQ(model->parameters().size(), 4);  // LibTorch's: by name
    EXPECT_EQ(model.parameters().size(), 2);
    EXPECT_EQ(model.state_dict(), R"({"buckets":[[1,0]]})");
  });
}

TEST(Ddp, RanksThatBuildDifferentModelsAllHearWhatDiffers) {
  using torch::nn::Linear;
  using torch::nn::Sequential;
  struct Case {
    std::function<Sequential(bool is_odd)> build;
    std::string difference;
  };
  const std::vector<Case> cases = {
      {[](bool is_odd) { return Sequential(Linear(3, is_odd ? 2 : 1)); },
       "0.weight is [1, 3] Float on ranks 0 and 2 and [2, 3] Float on rank 1"},
      {[](bool is_odd) {
         return is_odd ? Sequential(Linear(3, 1), Linear(1, 1)) : Sequential(Linear(3, 1));
       },
       "is nothing on ranks 0 and 2 and 1.weight on rank 1"},
      {[](bool is_odd) {
         Sequential net(Linear(3, 1));
         if (is_odd) net->to(torch::kFloat64);
         return net;
       },
       "0.weight is [1, 3] Float on ranks 0 and 2 and [1, 3] Double on rank 1"},
      {[](bool is_odd) {
         Sequential net(Linear(3, 1));
         net->parameters()[1].set_requires_grad(!is_odd);
         return net;
       },
       "0.bias is [1] Float on ranks 0 and 2 and [1] Float without gradient on rank 1"},
  };
  for (const Case& each : cases) {
    test::run_ranks(3, [&](Context& context) {
      EXPECT_THAT(
          refusal_of([&] { DistributedDataParallel(each.build(context.rank() == 1), context); }),
          testing::HasSubstr(each.difference));
    });
  }
  test::run_ranks(2, [&](Context& context) {
    EXPECT_THAT(refusal_of([&] {
                  DistributedDataParallel(Linear(3, 1), context,
                                          {.find_unused_parameters = context.rank() == 1});
                }),
                testing::HasSubstr("DdpOptions is {"));
  });
}

TEST(Ddp, AModuleWithoutParametersIsRefused) {
  test::run_ranks(1, [](Context& context) {
    EXPECT_THROW(DistributedDataParallel(std::make_shared<torch::nn::ReLUImpl>(), context),
                 UsageError);
  });
}

TEST(Ddp, AModuleOnSeveralKindsOfDevicesAndEmptyBucketsAreRefused) {
  test::run_ranks(1, [](Context& context) {
    torch::nn::Linear net(3, 1);
    net->register_parameter("elsewhere", torch::ones({2}, torch::kMeta));
    EXPECT_THAT(refusal_of([&] { DistributedDataParallel(net, context); }),
                testing::HasSubstr("weight is on cpu and elsewhere on meta"));
    EXPECT_THAT(refusal_of([&] {
                  DistributedDataParallel(torch::nn::Linear(3, 1), context,
                                          {.bucket_bytes_cap = 0});
                }),
                testing::HasSubstr("bucket"));
  });
}

TEST(Ddp, TakesAModuleHolder) {
  test::run_ranks(1, [](Context& context) {
    DistributedDataParallel model(torch::nn::Linear(3, 1), context);
    EXPECT_EQ(model(torch::ones({2, 3})).size(0), 2);
  });
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
      const std::string state = model->state_dict();
      model = std::make_unique<DistributedDataParallel<torch::nn::SequentialImpl>>(net, context,
                                                                                   options);
      if (layout == Layout::kCarried) model->load_state_dict(state);
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
        const DdpOptions options{.bucket_bytes_cap = bucket_bytes,
                                 .first_bucket_bytes_cap = bucket_bytes};
        const auto expected = trained(context, options, kSteps, kSteps, Layout::kCarried);
        // After no step there is nothing to carry over, after one the reducer itself has not used
        // its new layout yet.
        for (const int stop_after : {0, 1, 2, 4}) {
          EXPECT_TRUE(have_equal_bits(
              trained(context, options, kSteps, stop_after, Layout::kCarried), expected))
              << world_size << " ranks, stopped after " << stop_after;
        }
        // What the layout is good for: without it Gloo adds up in another order. Shared memory knows
        // one order only, and so do two nodes between them.
        EXPECT_EQ(
            have_equal_bits(trained(context, options, kSteps, 2, Layout::kForgotten), expected),
            context.process_group()->getBackend(torch::kCPU)->getBackendName() != "gloo")
            << world_size << " ranks";
      });
    }
  }
}

TEST(Ddp, TheLayoutStaysAsItWasLoaded) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
    DistributedDataParallel model(linear, context);
    EXPECT_EQ(model.state_dict(), R"({"buckets":[]})");
    // Not the one that a first step would find.
    const std::string state = R"({"buckets":[[0],[1]]})";
    model.load_state_dict(state);
    for (int step = 0; step < 3; ++step) {
      EXPECT_EQ(model.state_dict(), state);
      model(inputs_of(context.rank())).sum().backward();
    }
    EXPECT_THROW(model.load_state_dict(R"({"buckets":[[0]]})"), UsageError);
    EXPECT_EQ(model.state_dict(), state);
    // Back to a state from before the first step.
    model.load_state_dict(R"({"buckets":[]})");
    model(inputs_of(context.rank())).sum().backward();
    EXPECT_EQ(model.state_dict(), R"({"buckets":[[1,0]]})");
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
      model.load_state_dict(R"({"buckets":[[0,1]]})");
      ADD_FAILURE() << "accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("puts a and b into one bucket"));
    }
  });
}

// The gradients of two layers after some steps, under a hook or without.
std::vector<Tensor> gradients_with(Context& context, const CommHook& hook) {
  const auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(40, 30),
                                                               torch::nn::Linear(30, 20));
  std::uint64_t seed = 1;
  for (Tensor& parameter : net->parameters()) {
    parameter.detach().copy_(drawn(parameter.sizes(), seed++));
  }
  DistributedDataParallel model(net, context, {.comm_hook = hook});
  for (int step = 0; step < 6; ++step) {
    net->zero_grad();
    model(drawn({3, 40}, static_cast<std::uint64_t>(10 * step + context.rank())))
        .pow(2)
        .sum()
        .backward();
  }
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

double greatest_relative_error(const std::vector<Tensor>& values,
                               const std::vector<Tensor>& expected) {
  double greatest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    greatest =
        std::max(greatest, ((values[i] - expected[i]).norm() / expected[i].norm()).item<double>());
  }
  return greatest;
}

// Without a hook gradients are multiplied by 1 / ranks, with it divided: equal for powers of two.
TEST(CommHooks, AllReduceDoesWhatIsDoneWithoutAHook) {
  for (const int world_size : {2, 3}) {
    test::run_ranks(world_size, [&](Context& context) {
      const auto with_hook = gradients_with(context, allreduce_hook());
      const auto without = gradients_with(context, {});
      EXPECT_LT(greatest_relative_error(with_hook, without), 1e-7);
      EXPECT_EQ(have_equal_bits(with_hook, without), world_size == 2);
    });
  }
}

TEST(CommHooks, CompressionKeepsThePrecisionOfItsType) {
  test::run_ranks(2, [](Context& context) {
    const auto expected = gradients_with(context, {});
    // Rounded when sent and when summed: twice half a unit in the last of 11 and of 8 bits.
    EXPECT_LT(greatest_relative_error(gradients_with(context, fp16_compress_hook()), expected),
              1e-3);
    const double error =
        greatest_relative_error(gradients_with(context, bf16_compress_hook()), expected);
    EXPECT_LT(error, 8e-3);
    EXPECT_GT(error, 1e-4);  // and it was compressed
  });
}

// Each gradient above is a sum of three outer products, and two ranks' average one of six: matrices
// of rank six give it back, those of one do not.
TEST(CommHooks, PowerSgdIsExactForGradientsOfItsRank) {
  test::run_ranks(2, [](Context& context) {
    const auto expected = gradients_with(context, {});
    const auto with_rank = [&](std::int64_t rank, bool batched) {
      return gradients_with(context, power_sgd_hook({.matrix_approximation_rank = rank,
                                                     .start_power_sgd_iter = 2,
                                                     .min_compression_rate = 1,
                                                     .use_error_feedback = false,
                                                     .batch_tensors_with_same_shape = batched}));
    };
    EXPECT_LT(greatest_relative_error(with_rank(6, false), expected), 1e-4);
    EXPECT_LT(greatest_relative_error(with_rank(6, true), expected), 1e-4);
    EXPECT_GT(greatest_relative_error(with_rank(1, false), expected), 1e-2);
  });
}

// A bucket of complex gradients is one of their parts, and one of sparse gradients shows none.
TEST(CommHooks, PowerSgdSendsSparseAndComplexGradientsAsTheyAre) {
  struct Complex : torch::nn::Module {
    Complex() { w = register_parameter("w", torch::randn({6, 8}, torch::kComplexFloat)); }
    Tensor forward(const Tensor& x) { return (w * x).abs(); }
    Tensor w;
  };
  test::run_ranks(2, [](Context& context) {
    const auto check = [&](auto net, const Tensor& input, const CommHook& hook) {
      DistributedDataParallel model(net, context, {.comm_hook = hook});
      for (int step = 0; step < 4; ++step) {
        model->zero_grad();
        model(input).pow(2).sum().backward();
        Tensor gradient = model->parameters()[0].grad();
        if (gradient.is_sparse()) gradient = gradient.to_dense();
        EXPECT_GT(gradient.abs().sum().template item<float>(), 0);
        for (const Tensor& other : context.all_gather(gradient)) {
          EXPECT_TRUE(torch::equal(other, gradient)) << step;
        }
      }
    };
    const auto options = torch::nn::EmbeddingOptions(20, 6).sparse(true);
    const Tensor words = torch::tensor({context.rank(), 3});
    check(torch::nn::Embedding(options), words, power_sgd_hook({.start_power_sgd_iter = 2}));
    check(torch::nn::Embedding(options), words, fp16_compress_hook());
    check(torch::nn::Embedding(options), words, bf16_compress_hook());
    check(std::make_shared<Complex>(), torch::full({}, context.rank() + 1.0),
          power_sgd_hook({.start_power_sgd_iter = 2}));
  });
}

// What compression loses comes back in later steps: the sum over steps is nearer with feedback.
TEST(CommHooks, PowerSgdFeedsBackItsError) {
  test::run_ranks(2, [](Context& context) {
    const auto error_of = [&](bool use_feedback) {
      auto linear =
          std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(16, 16).bias(false));
      DistributedDataParallel model(
          linear, context,
          {.comm_hook = power_sgd_hook({.matrix_approximation_rank = 1,
                                        .start_power_sgd_iter = 2,
                                        .use_error_feedback = use_feedback})});
      Tensor sum = torch::zeros({16, 16});
      Tensor expected = torch::zeros({16, 16});
      for (int step = 0; step < 40; ++step) {
        linear->zero_grad();
        const auto gradient_of = [&](int rank) {
          return drawn({16, 16}, static_cast<std::uint64_t>(rank));
        };
        const Tensor own = gradient_of(context.rank());
        // forward(I) is the weight transposed, so the gradient of the product's sum is `own`.
        (model(torch::eye(16)).t() * own).sum().backward();
        sum += linear->weight.grad();
        expected += (gradient_of(0) + gradient_of(1)) / 2;
      }
      return ((sum - expected).norm() / expected.norm()).item<double>();
    };
    const double with_feedback = error_of(true);
    EXPECT_LT(with_feedback, 0.5 * error_of(false));
  });
}

TEST(CommHooks, OnesOfYourOwnReplaceTheReduction) {
  test::run_ranks(2, [](Context& context) {
    const CommHook keep = [](c10d::GradBucket& bucket, c10d::ProcessGroup&) {
      auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
      done->markCompleted(c10::IValue(std::vector<Tensor>{bucket.getBuffer() * 3}));
      return done;
    };
    auto linear = std::make_shared<torch::nn::LinearImpl>(3, 1);
    DistributedDataParallel model(linear, context, {.comm_hook = keep});
    model(inputs_of(context.rank())).sum().backward();
    EXPECT_TRUE(torch::allclose(linear->weight.grad(), 3 * inputs_of(context.rank()).sum(0, true)));
  });
}

TEST(CommHooks, PowerSgdOptionsThatCannotWorkAreRefused) {
  EXPECT_THROW(power_sgd_hook({.matrix_approximation_rank = 0}), UsageError);
  EXPECT_THROW(power_sgd_hook({.start_power_sgd_iter = 1}), UsageError);
}

// Rank r has r + 2 inputs; gradients are r + 1 each.
TEST(Join, RanksThatAreThroughTakePartUntilAllAre) {
  for (const bool divide_by_all : {true, false}) {
    for (const bool find_unused : {false, true}) {
      test::run_ranks(3, [&](Context& context) {
        auto linear =
            std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
        linear->weight.detach().fill_(context.rank());
        DistributedDataParallel model(linear, context, {.find_unused_parameters = find_unused});
        std::vector<float> gradients;
        model.join(
            [&] {
              for (int step = 0; step < context.rank() + 2; ++step) {
                linear->zero_grad();
                model(torch::full({1, 1}, context.rank() + 1.0F)).sum().backward();
                gradients.push_back(linear->weight.grad().item<float>());
                const torch::NoGradGuard no_grad;
                linear->weight -= linear->weight.grad();
              }
            },
            {.divide_by_initial_world_size = divide_by_all});
        const float all = divide_by_all ? 3 : 0;
        const auto divided = [&](float sum, float trained) {
          return sum / (all > 0 ? all : trained);
        };
        std::vector<float> expected = {divided(6, 3), divided(6, 3), divided(5, 2), divided(3, 1)};
        const float final_weight = -(expected[0] + expected[1] + expected[2] + expected[3]);
        expected.resize(static_cast<std::size_t>(context.rank()) + 2);
        EXPECT_THAT(gradients, testing::Pointwise(testing::FloatEq(), expected));
        // Also that of ranks that have not trained in the last steps.
        EXPECT_FLOAT_EQ(linear->weight.item<float>(), final_weight);
        // Afterwards all is as before.
        linear->zero_grad();
        model(torch::full({1, 1}, context.rank() + 1.0F)).sum().backward();
        EXPECT_FLOAT_EQ(linear->weight.grad().item<float>(), 2);
      });
    }
  }
}

TEST(Join, BuffersAreThoseOfARankThatStillTrains) {
  test::run_ranks(2, [](Context& context) {
    DistributedDataParallel model(net_of(context), context);
    model.join([&] {
      for (int step = 0; step < 2 + 3 * context.rank(); ++step) {
        model(inputs_of(context.rank())).first.sum().backward();
      }
    });
    EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 5);
  });
}

TEST(Join, ItMayEndWithTheFirstRankThatIsThrough) {
  test::run_ranks(2, [](Context& context) {
    auto linear = std::make_shared<torch::nn::LinearImpl>(1, 1);
    DistributedDataParallel model(linear, context);
    int steps = 0;
    const auto loop = [&] {
      for (int step = 0; step < 2 + 2 * context.rank(); ++step) {
        model(torch::ones({1, 1})).sum().backward();
        ++steps;
      }
    };
    EXPECT_THROW(model.join(loop, {.throw_on_early_termination = true}), Failure);
    EXPECT_EQ(steps, 2);
  });
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
