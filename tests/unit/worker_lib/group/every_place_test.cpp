// Every part of the library wherever ranks can be: on the CPU, over Gloo, over shared memory, and over
// that of several nodes; alone on a GPU, over NCCL; two on one GPU, over Gloo and NCCL. What they come to
// together is compared with plain LibTorch in one process on the CPU. On a GPU skipped, not passed,
// where there is none; several GPUs: the example gpu_smoke.
//
// Ranks are threads of this process. On a GPU they must be processes, since one thread of LibTorch makes all
// backward passes of a process there, and the first of them would wait for the second:
//
//   ddprun --nproc-per-node=2 worker_lib_test --gtest_filter=*TwoOnAGpu*
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <stdlib.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "ddprun/data_loader.h"
#include "ddprun/datasets.h"
#include "ddprun/ddp.h"
#include "ddprun/failure_vote.h"
#include "ddprun/gradients.h"
#include "ddprun/inference.h"
#include "ddprun/leave.h"
#include "ddprun/metrics.h"
#include "ddprun/mixed_precision.h"
#include "ddprun/sync_batch_norm.h"
#include "ddprun/trainer.h"
#include "tests/unit/worker_lib/drawn.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using test::drawn;
using test::drawn_classes;
using testing::HasSubstr;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Place {
  const char* name;
  Backend backend;
  torch::Device device;
  int ranks;
  int ranks_per_node = 0;  // 0: all on one
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }

class EveryPlace : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (GetParam().device.is_cuda() && !test::has_gpu()) GTEST_SKIP() << "no GPU here";
    const char* const size = std::getenv("WORLD_SIZE");
    if (are_processes() && (size == nullptr || std::atoi(size) != GetParam().ranks)) {
      GTEST_SKIP() << "its ranks are processes: ddprun --nproc-per-node=" << GetParam().ranks
                   << " worker_lib_test --gtest_filter=*TwoOnAGpu*";
    }
  }
  static bool are_processes() { return GetParam().device.is_cuda() && GetParam().ranks > 1; }
  static void on_all_ranks(const std::function<void(Context&)>& body) {
    const Place& place = GetParam();
    if (are_processes()) {
      // To NCCL another host: it refuses two ranks of one on a GPU.
      ::setenv("NCCL_HOSTID", std::getenv("RANK"), /*overwrite=*/1);
      Context context({.backend = place.backend,
                       .join_timeout = std::chrono::seconds(20),
                       .timeout = std::chrono::seconds(20),
                       .device = place.device});
      body(context);
      return leave(context);
    }
    test::run_ranks(
        place.ranks, body, [](int) { return Environment{}; },
        {.backend = place.backend, .device = place.device}, place.ranks_per_node);
  }
  static bool is_over_nccl() { return GetParam().backend == Backend::kNccl; }
};
INSTANTIATE_TEST_SUITE_P(
    Ranks, EveryPlace,
    testing::Values(Place{"OnTheCpu", Backend::kGloo, torch::kCPU, 2},
                    Place{"OverSharedMemory", Backend::kShm, torch::kCPU, 2},
                    Place{"OverThatOfTwoNodes", Backend::kShm, torch::kCPU, 4, 2},
                    Place{"AloneOnAGpuOverNccl", Backend::kNccl, {torch::kCUDA, 0}, 1},
                    Place{"TwoOnAGpuOverGloo", Backend::kGloo, {torch::kCUDA, 0}, 2},
                    Place{"TwoOnAGpuOverNccl", Backend::kNccl, {torch::kCUDA, 0}, 2}),
    [](const auto& place) { return place.param.name; });

// Of the same bits on the CPU; a GPU adds up in another order, in the same precision.
void expect_near(const Tensor& value, const Tensor& expected, double tolerance = 1e-5) {
  ASSERT_EQ(value.sizes(), expected.sizes());
  const Tensor here = value.detach().cpu().to(expected.scalar_type());
  EXPECT_TRUE(torch::allclose(here, expected.detach(), tolerance, tolerance))
      << "differs by up to " << (here - expected.detach()).abs().max().item<double>();
}
void expect_near(const Tensors& values, const Tensors& expected, double tolerance = 1e-5) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) expect_near(values[i], expected[i], tolerance);
}
void expect_equal_on_all_ranks(Context& context, const Tensors& tensors) {
  for (const Tensor& mine : tensors) {
    for (const Tensor& other : context.all_gather(mine.detach())) {
      EXPECT_TRUE(torch::equal(other, mine.detach()));
    }
  }
}

// The same for all ranks, whatever they are.
void fill(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  std::uint64_t seed = 100;
  for (Tensor& parameter : distinct_parameters(module)) {
    parameter.copy_(drawn(parameter.sizes(), seed++) / 2);
  }
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
    maybe = register_module("maybe", torch::nn::Linear(6, 3));
    fill(*this);
  }
  Tensor forward(const Tensor& x, bool with_all = true) {
    const Tensor y = second(torch::tanh(first(x)));
    return with_all ? y + maybe(x) : y;
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, maybe{nullptr};
};

template <typename Module = Net>
std::shared_ptr<Module> make(torch::Device device) {
  static std::mutex default_generator;  // from which layers draw before fill() comes
  const std::lock_guard lock(default_generator);
  auto module = std::make_shared<Module>();
  module->to(device);
  return module;
}

struct Batch {
  Tensor inputs, targets;
};
constexpr std::int64_t kRows = 8;
constexpr std::int64_t kClasses = 3;

Batch whole_batch(int step) {
  const auto seed = static_cast<std::uint64_t>(2 * step);
  return {drawn({kRows, 6}, seed), drawn_classes(kRows, kClasses, seed + 1)};
}
// Equal parts, so that the mean of the ranks' means is the mean of all.
Tensor share(const Context& context, const Tensor& whole) {
  const std::int64_t rows = whole.size(0) / context.size();
  return whole.narrow(0, rows * context.rank(), rows).to(context.device());
}
Batch share(const Context& context, const Batch& batch) {
  return {share(context, batch.inputs), share(context, batch.targets)};
}

template <typename Model>
Tensor loss_of(Model& model, const Batch& batch) {
  return torch::nn::functional::cross_entropy(model.forward(batch.inputs), batch.targets);
}

torch::optim::SGD sgd(const Tensors& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

// `steps` steps of `model`, whose batches `batch_of(step)` gives.
template <typename Model, typename BatchOf>
void train(Model& model, const Tensors& parameters, const BatchOf& batch_of, int steps) {
  auto optimizer = sgd(parameters);
  for (int step = 0; step < steps; ++step) {
    zero_grad(parameters);
    loss_of(model, batch_of(step)).backward();
    optimizer.step();
  }
}

// What one process on the CPU comes to with the batches of all ranks.
Tensors trained_alone(int steps) {
  const auto net = make(torch::kCPU);
  train(*net, net->parameters(), whole_batch, steps);
  return net->parameters();
}

// --- collectives

TEST_P(EveryPlace, EveryCollective) {
  on_all_ranks([](Context& context) {
    const int n = context.size();
    const int before = (context.rank() + n - 1) % n;
    const auto rows_of = [&](int rank, std::int64_t rows,
                             torch::ScalarType type = torch::kFloat32) {
      return (torch::arange(rows * 3).view({rows, 3}) + 100 * rank).to(context.device(), type);
    };
    const Tensor mine = rows_of(context.rank(), 2 * n);
    Tensor all = rows_of(0, 2 * n);
    for (int rank = 1; rank < n; ++rank) all = all + rows_of(rank, 2 * n);

    Tensor tensor = mine.clone();
    context.broadcast(tensor, n - 1);
    EXPECT_TRUE(torch::equal(tensor, rows_of(n - 1, 2 * n)));
    tensor = mine.clone();
    context.all_reduce(tensor);
    EXPECT_TRUE(torch::equal(tensor, all));
    tensor = mine.clone();
    auto pending = context.all_reduce_async(tensor, ReduceOp::AVG);
    pending.wait();
    EXPECT_TRUE(torch::equal(tensor, all / n));
    tensor = mine.clone().t();
    context.all_reduce(tensor, ReduceOp::MAX);
    EXPECT_TRUE(torch::equal(tensor, rows_of(n - 1, 2 * n).t()));
    tensor = mine.clone();
    context.reduce(tensor, n - 1);
    if (context.rank() == n - 1) {
      EXPECT_TRUE(torch::equal(tensor, all));
    }

    // Also of a type that NCCL does not know.
    for (const auto type : {torch::kFloat32, torch::kInt16, torch::kBool}) {
      const Tensors gathered = context.all_gather(rows_of(context.rank(), 2, type));
      ASSERT_EQ(gathered.size(), static_cast<std::size_t>(n));
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_TRUE(torch::equal(gathered[static_cast<std::size_t>(rank)], rows_of(rank, 2, type)));
      }
    }
    EXPECT_EQ(context.gather(mine, n - 1).size(),
              static_cast<std::size_t>(context.rank() == n - 1 ? n : 0));
    const Tensors uneven = context.all_gather_uneven(rows_of(context.rank(), context.rank()));
    EXPECT_TRUE(torch::equal(uneven.back(), rows_of(n - 1, n - 1)));
    Tensor part = torch::zeros({2, 3}, mine.options());
    context.scatter(part, context.rank() == 0 ? Tensors(mine.chunk(n)) : Tensors());
    EXPECT_TRUE(
        torch::equal(part, rows_of(0, 2 * n).chunk(n)[static_cast<std::size_t>(context.rank())]));
    EXPECT_TRUE(torch::equal(context.reduce_scatter(mine),
                             all.chunk(n)[static_cast<std::size_t>(context.rank())]));
    const Tensors came = context.all_to_all(mine).chunk(n);
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_TRUE(
          torch::equal(came[static_cast<std::size_t>(rank)],
                       rows_of(rank, 2 * n).chunk(n)[static_cast<std::size_t>(context.rank())]));
    }
    EXPECT_EQ(context.all_to_all(Tensors(static_cast<std::size_t>(n), mine)).size(),
              static_cast<std::size_t>(n));
    if (n > 1) {
      auto sent = context.send_async(mine, (context.rank() + 1) % n);
      tensor = torch::zeros_like(mine);
      context.recv(tensor, before);
      sent.wait();
      EXPECT_TRUE(torch::equal(tensor, rows_of(before, 2 * n)));
    }
    context.barrier();

    // Beside it on the CPU.
    EXPECT_EQ(context.all_reduce(1), n);
    EXPECT_EQ(context.broadcast(std::string("rank ") + std::to_string(context.rank()), n - 1),
              "rank " + std::to_string(n - 1));
    const Tensor object = context.broadcast_object(mine);
    EXPECT_TRUE(torch::equal(object.cpu(), rows_of(0, 2 * n).cpu()));
    EXPECT_EQ(context.run_on(0, [] { return 7; }), 7);
    EXPECT_EQ(context.main_process_first([] { return 8; }), 8);
  });
}

TEST_P(EveryPlace, ASmallerGroup) {
  on_all_ranks([](Context& context) {
    const auto last = context.new_group({context.size() - 1});
    const auto everybody = context.new_group([&] {
      std::vector<int> ranks(static_cast<std::size_t>(context.size()));
      std::iota(ranks.begin(), ranks.end(), 0);
      return ranks;
    }());
    ASSERT_EQ(last != nullptr, context.rank() == context.size() - 1);
    Tensor tensor = torch::ones({4}, context.device());
    everybody->all_reduce(tensor);
    if (last) last->all_reduce(tensor);
    EXPECT_EQ(tensor[3].item<int>(), context.size());
    const auto net = make(context.device());
    DistributedDataParallel model(net, *everybody);
    train(
        model, net->parameters(), [&](int step) { return share(context, whole_batch(step)); }, 2);
    expect_near(net->parameters(), trained_alone(2));
  });
}

// --- DistributedDataParallel

TEST_P(EveryPlace, TrainingIsThatOfOneRankWithAllBatches) {
  const Tensors expected = trained_alone(5);
  on_all_ranks([&](Context& context) {
    const auto options = {DdpOptions{},
                          DdpOptions{.bucket_bytes_cap = 64, .first_bucket_bytes_cap = 64},
                          DdpOptions{.find_unused_parameters = true},
                          DdpOptions{.static_graph = true},
                          DdpOptions{.gradient_as_bucket_view = true},
                          DdpOptions{.comm_hook = allreduce_hook()}};
    for (const DdpOptions& each : options) {
      const auto net = make(context.device());
      DistributedDataParallel model(net, context, each);
      train(
          model, model.parameters(), [&](int step) { return share(context, whole_batch(step)); },
          5);
      expect_near(model.parameters(), expected);
      expect_equal_on_all_ranks(context, model.parameters());
    }
  });
}

TEST_P(EveryPlace, CompressionKeepsThePrecisionOfItsType) {
  const Tensors expected = trained_alone(5);
  on_all_ranks([&](Context& context) {
    const std::pair<CommHook, double> hooks[] = {{fp16_compress_hook(), 2e-3},
                                                 {bf16_compress_hook(), 2e-2}};
    for (const auto& [hook, tolerance] : hooks) {
      const auto net = make(context.device());
      DistributedDataParallel model(net, context, {.comm_hook = hook});
      train(
          model, net->parameters(), [&](int step) { return share(context, whole_batch(step)); }, 5);
      expect_near(net->parameters(), expected, tolerance);
      expect_equal_on_all_ranks(context, net->parameters());
    }
  });
}

// A gradient of a batch of one row is an outer product: n ranks' average has rank n.
TEST_P(EveryPlace, PowerSgdIsExactForGradientsOfItsRank) {
  on_all_ranks([](Context& context) {
    for (const bool is_batched : {false, true}) {
      const auto hook = power_sgd_hook({.matrix_approximation_rank = context.size(),
                                        .start_power_sgd_iter = 2,
                                        .min_compression_rate = 1,
                                        .use_error_feedback = false,
                                        .batch_tensors_with_same_shape = is_batched});
      const auto linear = make<torch::nn::SequentialImpl>(context.device());
      linear->push_back(torch::nn::Linear(torch::nn::LinearOptions(20, 20).bias(false)));
      linear->push_back(torch::nn::Linear(torch::nn::LinearOptions(20, 20).bias(false)));
      fill(*linear);
      linear->to(context.device());
      const auto alone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(linear->clone());
      alone->to(torch::kCPU);
      DistributedDataParallel model(linear, context, {.comm_hook = hook});
      for (std::uint64_t step = 0; step < 4; ++step) {
        const Tensor rows = drawn({context.size(), 20}, step);
        zero_grad(linear->parameters());
        zero_grad(alone->parameters());
        model(share(context, rows)).pow(2).sum().backward();
        (alone->forward(rows).pow(2).sum() / context.size()).backward();
        for (std::size_t i = 0; i < 2; ++i) {
          const Tensor expected = alone->parameters()[i].grad();
          const Tensor error = linear->parameters()[i].grad().cpu() - expected;
          EXPECT_LT((error.norm() / expected.norm()).item<double>(), 1e-4) << step;
        }
      }
    }
  });
}

TEST_P(EveryPlace, GradientsAccumulateUnderNoSync) {
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    {
      const auto no_sync = model.no_sync();
      loss_of(model, share(context, whole_batch(0))).backward();
    }
    loss_of(model, share(context, whole_batch(1))).backward();
    const auto alone = make(torch::kCPU);
    loss_of(*alone, whole_batch(0)).backward();
    loss_of(*alone, whole_batch(1)).backward();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      expect_near(net->parameters()[i].grad(), alone->parameters()[i].grad());
    }
  });
}

TEST_P(EveryPlace, ParametersThatAForwardDidNotUseAreFoundOrNamed) {
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context, {.find_unused_parameters = true});
    for (const bool with_all : {false, true, false}) {
      zero_grad(net->parameters());
      model(share(context, whole_batch(0).inputs), with_all).sum().backward();
      EXPECT_EQ(net->maybe->weight.grad().defined(), with_all);
      EXPECT_TRUE(net->first->weight.grad().defined());
    }
  });
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    const auto step = [&] {
      model(share(context, whole_batch(0).inputs), /*with_all=*/false).sum().backward();
    };
    step();
    try {
      step();
      ADD_FAILURE() << "nothing was said";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("maybe.weight, maybe.bias"));
    }
  });
}

struct Normed : torch::nn::Module {
  Normed() {
    first = register_module("first", torch::nn::Linear(6, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  Tensor forward(const Tensor& x) { return norm(first(x)); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST_P(EveryPlace, BuffersAreRankZeros) {
  on_all_ranks([](Context& context) {
    const auto net = make<Normed>(context.device());
    DistributedDataParallel model(net, context);
    for (int step = 0; step < 3; ++step) {
      model(share(context, whole_batch(step).inputs)).sum().backward();
    }
    // Rank 0's of before the last forward, each with its own last batch then.
    net->norm->eval();
    model(share(context, whole_batch(3).inputs));
    expect_equal_on_all_ranks(context, net->buffers());
    EXPECT_EQ(net->norm->num_batches_tracked.item<int>(), 3);
  });
}

TEST_P(EveryPlace, SyncBatchNormIsBatchNormOverAllRanks) {
  on_all_ranks([](Context& context) {
    const Tensor whole = drawn({kRows, 3, 2, 2}, 1) * 3 + 10;
    const Tensor factors = drawn({kRows, 3, 2, 2}, 2);
    torch::nn::BatchNorm2d alone(3);
    const Tensor all = whole.clone().requires_grad_();
    const Tensor expected = alone(all);
    (expected * factors).sum().backward();

    SyncBatchNorm norm(3, context);
    norm->to(context.device());
    const Tensor own = share(context, whole).clone().requires_grad_();
    const Tensor output = norm(own);
    (output * share(context, factors)).sum().backward();
    expect_near(output, share(context, expected.detach()).cpu(), 1e-4);
    expect_near(own.grad(), share(context, all.grad()).cpu(), 1e-4);
    Tensor gradient = norm->weight.grad().clone();
    context.all_reduce(gradient);
    expect_near(gradient, alone->weight.grad(), 1e-4);
    expect_near(norm->running_mean, alone->running_mean);
    expect_near(norm->running_var, alone->running_var);
  });
}

TEST_P(EveryPlace, RanksThatAreThroughTakePartUntilAllAre) {
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    model.join([&] {
      train(
          model, net->parameters(), [&](int step) { return share(context, whole_batch(step)); },
          1 + context.rank());
    });
    expect_equal_on_all_ranks(context, net->parameters());
    if (context.size() == 1) expect_near(net->parameters(), trained_alone(1));
  });
}

struct Words : torch::nn::Module {
  Words() {
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(
                   torch::nn::EmbeddingBagOptions(20, 4).sparse(true).mode(torch::kSum)));
    fill(*this);
  }
  Tensor forward(const Tensor& x) { return bag(x); }
  torch::nn::EmbeddingBag bag{nullptr};
};

TEST_P(EveryPlace, SparseGradientsAreAveragedOrRefusedByName) {
  on_all_ranks([](Context& context) {
    const auto net = make<Words>(context.device());
    const Tensor words = torch::arange(kRows * 3).remainder(20).view({kRows, 3});
    try {
      DistributedDataParallel model(net, context);
      model(share(context, words)).pow(2).mean().backward();
    } catch (const UsageError& error) {
      EXPECT_TRUE(is_over_nccl());
      EXPECT_THAT(error.what(), HasSubstr("bag.weight"));
      return;
    }
    EXPECT_FALSE(is_over_nccl());
    const auto alone = make<Words>(torch::kCPU);
    alone->forward(words).pow(2).mean().backward();
    ASSERT_TRUE(net->bag->weight.grad().is_sparse());
    expect_near(net->bag->weight.grad().to_dense(), alone->bag->weight.grad().to_dense());
  });
}

// --- what comes between backward and step

TEST_P(EveryPlace, GradientsAreClipped) {
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    loss_of(model, share(context, whole_batch(0))).backward();
    const auto alone = make(torch::kCPU);
    loss_of(*alone, whole_batch(0)).backward();
    const Tensor norm = clip_grad_norm_(model.parameters(), 0.1);
    EXPECT_EQ(norm.device(), context.device());
    expect_near(norm, clip_grad_norm_(alone->parameters(), 0.1));
    clip_grad_value_(model.parameters(), 0.01);
    clip_grad_value_(alone->parameters(), 0.01);
    expect_near(net->second->weight.grad(), alone->second->weight.grad());
  });
}

TEST_P(EveryPlace, MixedPrecisionTrainsAndSkipsWhatIsInfinite) {
  on_all_ranks([](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    auto optimizer = sgd(net->parameters());
    GradScaler scaler({.init_scale = 1024});
    for (int step = 0; step < 4; ++step) {
      Batch batch = share(context, whole_batch(step));
      // One row on one rank: no rank makes this step.
      const bool is_bad = step == 2;
      if (is_bad && context.rank() == 0) batch.inputs[0][0] = INFINITY;
      Tensor scores;
      {
        const Autocast autocast(context.device(), torch::kHalf);
        scores = model(batch.inputs);
        EXPECT_EQ(scores.scalar_type(), torch::kHalf);
      }
      zero_grad(net->parameters());
      scaler.scale(torch::nn::functional::cross_entropy(scores.to(torch::kFloat32), batch.targets))
          .backward();
      scaler.unscale_(optimizer);
      clip_grad_norm_(net->parameters(), 100);
      EXPECT_EQ(scaler.step(optimizer), !is_bad);
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), 512);
    expect_equal_on_all_ranks(context, net->parameters());

    const auto alone = make(torch::kCPU);
    train(
        *alone, alone->parameters(), [](int step) { return whole_batch(step == 2 ? 3 : step); }, 3);
    expect_near(net->parameters(), alone->parameters(), 1e-2);
  });
}

TEST_P(EveryPlace, ALossThatIsNotFiniteIsNamedOnAllRanks) {
  on_all_ranks([](Context& context) {
    FailureVote failures(context);
    FiniteGuard finite(failures);
    finite.watch(torch::ones({}, context.device()), 1);
    failures.settle();
    const bool is_mine = context.rank() == context.size() - 1;
    finite.watch(torch::full({}, is_mine ? NAN : 1.0F, context.device()), 2);
    try {
      failures.settle();
      ADD_FAILURE() << "nothing was said";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), HasSubstr("rank " + std::to_string(context.size() - 1)));
      EXPECT_THAT(failure.what(), HasSubstr("the loss of step 2 is"));
    }
  });
}

// --- data, metrics, inference

struct Rows {
  Tensor data = drawn({21, 6}, 7);
  Tensor target = drawn_classes(21, kClasses, 8);
  TensorDataset dataset() const { return TensorDataset(data, target); }
};

TEST_P(EveryPlace, ALoadersBatchesAreOnTheDevice) {
  on_all_ranks([](Context& context) {
    const Rows rows;
    for (const int threads : {0, 2}) {
      DistributedSampler sampler(21, context,
                                 {.shuffle = true, .seed = 1, .allow_duplicates = false});
      DataLoader loader(rows.dataset(), sampler,
                        {.batch_size = 4, .num_workers = threads, .device = context.device()});
      Tensor sum = torch::zeros({6}, context.device());
      for (auto& batch : loader) {
        EXPECT_EQ(batch.data.device(), context.device());
        EXPECT_EQ(batch.target.device(), context.device());
        const Tensor own = torch::tensor(
            std::vector<std::int64_t>(loader.indices().begin(), loader.indices().end()));
        EXPECT_TRUE(torch::equal(batch.data.cpu(), rows.data.index_select(0, own)));
        sum += batch.data.sum(0);
      }
      context.all_reduce(sum);
      expect_near(sum, rows.data.sum(0));
    }
  });
}

TEST_P(EveryPlace, MetricsAreThoseOfOneRankWithAllSamples) {
  const Tensor scores = drawn({kRows * 5, kClasses}, 3);
  const Tensor targets = drawn_classes(kRows * 5, kClasses, 4);
  const Tensor values = (drawn({kRows * 5}, 5) * 20).exp();
  struct Numbers {
    double mean, top1, top2;
    Tensor confusion;
  };
  const auto measure = [&](Context& context, const std::function<Tensor(const Tensor&)>& own) {
    Mean mean;
    Accuracy top1, top2(2);
    ConfusionMatrix confusion(kClasses);
    const Tensor my_scores = own(scores), my_targets = own(targets), my_values = own(values);
    for (std::int64_t at = 0; at < my_scores.size(0); at += 3) {
      mean.update(my_values.slice(0, at, at + 3));
      top1.update(my_scores.slice(0, at, at + 3), my_targets.slice(0, at, at + 3));
      top2.update(my_scores.slice(0, at, at + 3), my_targets.slice(0, at, at + 3));
      confusion.update(my_scores.slice(0, at, at + 3), my_targets.slice(0, at, at + 3));
    }
    return Numbers{mean.compute(context), top1.compute(context), top2.compute(context),
                   confusion.compute(context)};
  };
  Context alone(Environment{}, {.device = torch::kCPU});
  const Numbers expected = measure(alone, [](const Tensor& all) { return all; });
  on_all_ranks([&](Context& context) {
    const Numbers numbers =
        measure(context, [&](const Tensor& all) { return share(context, all); });
    EXPECT_DOUBLE_EQ(numbers.mean, expected.mean);
    EXPECT_EQ(numbers.top1, expected.top1);
    EXPECT_EQ(numbers.top2, expected.top2);
    EXPECT_TRUE(torch::equal(numbers.confusion, expected.confusion));
    Accuracy wrong;
    const auto read_wrong = [&] {  // on a GPU it is found when it is read
      wrong.update(share(context, scores), share(context, targets) + kClasses);
      wrong.compute(context);
    };
    EXPECT_THROW(read_wrong(), UsageError);
  });
}

TEST_P(EveryPlace, PredictionsComeInTheDatasetsOrder) {
  on_all_ranks([](Context& context) {
    const Rows rows;
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    const Tensor predicted = predict(context, model, rows.dataset(), {.batch_size = 4});
    EXPECT_TRUE(predicted.is_cpu());
    const torch::NoGradGuard no_grad;
    expect_near(predicted, make(torch::kCPU)->forward(rows.data));
  });
}

// --- Trainer and checkpoints

struct Stop {};
struct StopAt : Callback {
  explicit StopAt(std::int64_t at) : step(at) {}
  void on_step_end(const TrainingView& training) override {
    if (training.step() == step) throw Stop();
  }
  std::int64_t step;
};

struct Trained {
  History history;
  Tensors parameters;
};

// With everything that has a state; `stop_at` 0: to the end.
Trained fit(Context& context, const std::string& folder, std::int64_t stop_at) {
  const Rows rows;
  const auto net = make(context.device());
  DistributedDataParallel model(net, context);
  torch::optim::Adam optimizer(model.parameters(), torch::optim::AdamOptions(0.05));
  LRScheduler schedule(optimizer, lr_scheduler::cosine_annealing_lr(/*t_max=*/12));
  GradScaler scaler({.init_scale = 8, .growth_interval = 3});
  Checkpointer checkpoints(context, folder, {.best = MetricMode::kMin, .async_save = true});
  Trainer trainer(context, model, optimizer,
                  {.max_epochs = 3,
                   .accumulate_grad_batches = 2,
                   .clip_grad_norm = 1,
                   .monitor = "loss",
                   .mode = MetricMode::kMin,
                   .enable_progress_bar = false});
  trainer.use(schedule, LRScheduler::Interval::kStep);
  trainer.use(scaler);
  trainer.use(checkpoints, {.every_steps = 2});
  if (stop_at > 0) trainer.add_callback(std::make_shared<StopAt>(stop_at));
  DistributedSampler sampler(21, context, {.seed = 3});
  DataLoader loader(
      rows.dataset(), sampler,
      {.batch_size = 4 / context.size(), .num_workers = 1, .device = context.device()});
  const auto loss = [](auto& wrapped, const torch::data::Example<>& batch) {
    return BatchResult{loss_of(wrapped, Batch{batch.data, batch.target}), batch.target.size(0)};
  };
  const auto evaluation = [&]() -> Metrics {
    Mean mean;
    const Batch batch = share(context, whole_batch(99));
    mean.update_mean(loss_of(*net, batch), batch.targets.size(0));
    return {{"loss", mean.compute(context)}};
  };
  Trained trained;
  try {
    trained.history = trainer.fit(loader, loss, evaluation);
  } catch (const Stop&) {
  }
  trained.parameters = net->parameters();
  return trained;
}

TEST_P(EveryPlace, AResumedTrainingIsTheUninterruptedOne) {
  const test::TempFolder undisturbed, disturbed;
  on_all_ranks([&](Context& context) {
    const Trained whole = fit(context, undisturbed.path(), 0);
    ASSERT_EQ(whole.history.epochs.size(), 3u);
    EXPECT_LT(whole.history.epochs[2].loss, whole.history.epochs[0].loss);
    fit(context, disturbed.path(), 4);
    const Trained resumed = fit(context, disturbed.path(), 0);
    ASSERT_EQ(resumed.history.epochs.size(), 3u);
    for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
      expect_near(resumed.parameters[i], whole.parameters[i].cpu(), 1e-6);
    }
    EXPECT_NEAR(resumed.history.epochs[1].loss, whole.history.epochs[1].loss, 1e-6);
    EXPECT_EQ(resumed.history.evaluations.size(), whole.history.evaluations.size());
  });
}

// Saved there and resumed on the CPU, and the other way round; an asynchronous one is of the moment
// of the call, and the device's random numbers go on where they were.
TEST_P(EveryPlace, ACheckpointGoesFromDeviceToDevice) {
  const test::TempFolder folder;
  on_all_ranks([&](Context& context) {
    const auto net = make(context.device());
    DistributedDataParallel model(net, context);
    torch::optim::Adam optimizer(net->parameters());
    loss_of(model, share(context, whole_batch(0))).backward();
    optimizer.step();
    Tensors expected;
    for (const Tensor& parameter : net->parameters()) {
      expected.push_back(parameter.detach().cpu().clone());
    }
    Tensor next;
    {
      Checkpointer checkpoints(context, folder.path(), {.async_save = true});
      checkpoints.save(model, optimizer, {.step = 1});
      // The ranks share their generators, as threads of a process.
      if (context.size() == 1) next = torch::rand({3}, context.device()).cpu();
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : net->parameters()) parameter.zero_();
      checkpoints.wait();
      ASSERT_EQ(checkpoints.resume(model, optimizer)->step, 1);
      if (next.defined()) {
        EXPECT_TRUE(torch::equal(torch::rand({3}, context.device()).cpu(), next));
      }
    }
    expect_near(net->parameters(), expected, 0);
    EXPECT_EQ(net->first->weight.device(), context.device());

    const auto on_cpu = make(torch::kCPU);
    torch::optim::Adam cpu_optimizer(on_cpu->parameters());
    Checkpointer checkpoints(context, folder.path());
    {
      const torch::NoGradGuard no_grad;
      for (Tensor& parameter : on_cpu->parameters()) parameter.zero_();
    }
    ASSERT_TRUE(checkpoints.resume(on_cpu, cpu_optimizer));
    expect_near(on_cpu->parameters(), expected, 0);
    zero_grad(on_cpu->parameters());
    loss_of(*on_cpu, whole_batch(1)).backward();
    cpu_optimizer.step();
    checkpoints.save(on_cpu, cpu_optimizer, {.step = 2});
    ASSERT_EQ(checkpoints.resume(model, optimizer)->step, 2);
    expect_near(net->parameters(), on_cpu->parameters(), 0);
    zero_grad(net->parameters());
    loss_of(model, share(context, whole_batch(2))).backward();
    optimizer.step();  // its state has come to the device, too

    const std::string path = folder.file("weights" + std::to_string(context.rank()));
    save_weights(model, path);
    load_weights(path, on_cpu);
    expect_near(
        on_cpu->parameters(),
        [&] {
          Tensors all;
          for (const Tensor& parameter : net->parameters()) all.push_back(parameter.detach().cpu());
          return all;
        }(),
        0);
  });
}

}  // namespace
}  // namespace ddprun
