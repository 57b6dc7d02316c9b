// Metrics and predict(): what ranks must agree on with one process that has all the data.
#include "ddprun/metrics.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <mutex>
#include <numeric>

#include "ddprun/ddp.h"
#include "ddprun/inference.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/group_of_threads.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using torch::Tensor;

constexpr std::int64_t kSamples = 103;
constexpr std::int64_t kClasses = 5;

struct Data {
  Tensor scores = torch::randn({kSamples, kClasses}, at::make_generator<at::CPUGeneratorImpl>(3u));
  Tensor target =
      torch::randint(kClasses, {kSamples}, at::make_generator<at::CPUGeneratorImpl>(4u));
  // Of very different sizes, so that rounding would show.
  Tensor losses =
      (torch::randn({kSamples}, at::make_generator<at::CPUGeneratorImpl>(5u)) * 20).exp();
};

// Calls f(from, to) for the batches that `rank` of `world` has: uneven ones, an empty one, and none
// at all on the last rank.
void for_batches(int rank, int world, const std::function<void(std::int64_t, std::int64_t)>& f) {
  const int having = world == 1 ? 1 : world - 1;
  if (rank >= having) return;
  const std::int64_t begin = kSamples * rank / having;
  const std::int64_t end = kSamples * (rank + 1) / having;
  for (std::int64_t at = begin, size = 1; at < end; at += size, size = size * 2 + 1) {
    f(at, std::min(at + size, end));
  }
  f(end, end);
}

// What `compute` gives, equal on all ranks, for 1 to 4 of them.
template <typename Compute>
auto on_every_world(Compute compute) {
  using Result = std::invoke_result_t<Compute, Context&>;
  std::vector<Result> results;
  std::mutex mutex;
  for (int world = 1; world <= 4; ++world) {
    test::run_ranks(world, [&](Context& context) {
      Result result = compute(context);
      const std::lock_guard lock(mutex);
      results.push_back(std::move(result));
    });
  }
  EXPECT_EQ(results.size(), 10u);
  for (const Result& result : results) EXPECT_EQ(result, results.front());
  return results.front();
}

TEST(Metrics, AMeanIsTheSameOnOneRankAndOnMany) {
  const Data data;
  const float mean = on_every_world([&](Context& context) {
    Mean loss;
    for_batches(context.rank(), context.world_size(), [&](std::int64_t from, std::int64_t to) {
      loss.update(data.losses.slice(0, from, to));
    });
    return static_cast<float>(loss.compute(context));  // without the roundings of the sum
  });
  long double sum = 0;
  for (std::int64_t i = 0; i < kSamples; ++i) sum += data.losses[i].item<float>();
  EXPECT_EQ(mean, static_cast<float>(sum / kSamples));
}

TEST(Metrics, AMeanOfBatchMeansIsWeightedBySamples) {
  test::run_ranks(2, [](Context& context) {
    Mean loss;
    if (context.rank() == 0) {
      loss.update_mean(torch::tensor(3.0f), 10);
    } else {
      loss.update_mean(torch::tensor(9.0f), 2);
    }
    EXPECT_EQ(loss.compute(context), 4.0);
    EXPECT_EQ(loss.total(context).count, 12);
    loss.reset();
    EXPECT_TRUE(std::isnan(loss.compute(context)));
  });
}

TEST(Metrics, TopKAccuracyIsTheSameOnOneRankAndOnMany) {
  const Data data;
  for (const int k : {1, 2, 3, 5}) {
    const double accuracy = on_every_world([&](Context& context) {
      Accuracy metric(k);
      for_batches(context.rank(), context.world_size(), [&](std::int64_t from, std::int64_t to) {
        metric.update(data.scores.slice(0, from, to), data.target.slice(0, from, to));
      });
      return metric.compute(context);
    });
    const Tensor best = std::get<1>(data.scores.topk(k, 1));
    const auto hits = best.eq(data.target.unsqueeze(1)).any(1).sum().item<std::int64_t>();
    EXPECT_EQ(accuracy, static_cast<double>(hits) / kSamples) << k;
  }
}

double accuracy_of(int k, const Tensor& scores, std::int64_t target) {
  double value = 0;
  test::run_ranks(1, [&](Context& context) {
    Accuracy metric(k);
    metric.update(scores.unsqueeze(0), torch::tensor({target}));
    value = metric.compute(context);
  });
  return value;
}

// A model that gives the same score to all classes, or NaN, is not right about everything.
TEST(Metrics, EqualScoresAndNaNDoNotMakeAModelRight) {
  const Tensor equal = torch::ones(3);
  EXPECT_EQ(accuracy_of(1, equal, 0), 1);
  EXPECT_EQ(accuracy_of(1, equal, 1), 0);
  EXPECT_EQ(accuracy_of(2, equal, 1), 1);
  const double nan = std::nan("");
  EXPECT_EQ(accuracy_of(1, torch::full(3, nan), 0), 0);
  EXPECT_EQ(accuracy_of(3, torch::full(3, nan), 0), 0);
  EXPECT_EQ(accuracy_of(1, torch::tensor({1.0, nan, 0.0}), 0), 0);
  EXPECT_EQ(accuracy_of(2, torch::tensor({1.0, nan, 0.0}), 0), 1);
}

TEST(Metrics, AConfusionMatrixIsTheSameOnOneRankAndOnMany) {
  const Data data;
  const Tensor chosen = data.scores.argmax(1);
  const auto counts = on_every_world([&](Context& context) {
    ConfusionMatrix matrix(kClasses);
    for_batches(context.rank(), context.world_size(), [&](std::int64_t from, std::int64_t to) {
      // Scores and classes are the same to it.
      if (from % 2 == 0) {
        matrix.update(data.scores.slice(0, from, to), data.target.slice(0, from, to));
      } else {
        matrix.update(chosen.slice(0, from, to).to(torch::kInt32), data.target.slice(0, from, to));
      }
    });
    const Tensor all = matrix.compute(context).contiguous();
    const auto* const first = all.const_data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(first, first + all.numel());
  });
  std::vector<std::int64_t> expected(kClasses * kClasses, 0);
  for (std::int64_t i = 0; i < kSamples; ++i) {
    ++expected[static_cast<std::size_t>(data.target[i].item<std::int64_t>() * kClasses +
                                        chosen[i].item<std::int64_t>())];
  }
  EXPECT_EQ(counts, expected);
}

// Worked by hand: targets 0 0 0 1 1 2 against 0 0 1 1 2 2, and a class 3 that never occurs.
TEST(Metrics, PrecisionRecallAndF1AreThoseOfTheFormulas) {
  test::run_ranks(2, [](Context& context) {
    ConfusionMatrix matrix(4);
    if (context.rank() == 0) {
      matrix.update(torch::tensor({0, 0, 1, 1}), torch::tensor({0, 0, 0, 1}));
    } else {
      matrix.update(torch::tensor({2, 2}), torch::tensor({1, 2}));
    }
    const ClassScores scores = matrix.scores(context);
    EXPECT_THAT(scores.support, ElementsAre(3, 2, 1, 0));
    const double precision[] = {1.0, 0.5, 0.5, 0}, recall[] = {2.0 / 3, 0.5, 1.0, 0};
    const double f1[] = {0.8, 0.5, 2.0 / 3, 0};
    for (std::size_t c = 0; c < 4; ++c) {
      EXPECT_DOUBLE_EQ(scores.of_class[c].precision, precision[c]);
      EXPECT_DOUBLE_EQ(scores.of_class[c].recall, recall[c]);
      EXPECT_DOUBLE_EQ(scores.of_class[c].f1, f1[c]);
    }
    EXPECT_DOUBLE_EQ(scores.macro.precision, 2.0 / 3);
    EXPECT_DOUBLE_EQ(scores.macro.recall, 13.0 / 18);
    EXPECT_DOUBLE_EQ(scores.macro.f1, (0.8 + 0.5 + 2.0 / 3) / 3);
    EXPECT_DOUBLE_EQ(scores.weighted.precision, 0.75);
    EXPECT_DOUBLE_EQ(scores.weighted.recall, 4.0 / 6);
    EXPECT_DOUBLE_EQ(scores.weighted.f1, (3 * 0.8 + 2 * 0.5 + 2.0 / 3) / 6);
    EXPECT_DOUBLE_EQ(scores.accuracy, 4.0 / 6);
  });
}

TEST(Metrics, WithoutSamplesThereIsNoNumber) {
  test::run_ranks(2, [](Context& context) {
    EXPECT_TRUE(std::isnan(Accuracy().compute(context)));
    const ClassScores scores = ConfusionMatrix(2).scores(context);
    EXPECT_TRUE(std::isnan(scores.accuracy));
    EXPECT_EQ(scores.macro.f1, 0);
  });
}

TEST(Metrics, WhatIsNoClassIsRefused) {
  ConfusionMatrix matrix(2);
  EXPECT_THROW(matrix.update(torch::tensor({2}), torch::tensor({0})), UsageError);
  EXPECT_THROW(matrix.update(torch::tensor({0}), torch::tensor({-1})), UsageError);
  EXPECT_THROW(matrix.update(torch::tensor({0, 1}), torch::tensor({0})), UsageError);
  EXPECT_THROW(matrix.update(torch::tensor({0.5}), torch::tensor({0})), UsageError);
  EXPECT_THROW(matrix.update(torch::ones({1, 3}), torch::tensor({0})), UsageError);
  EXPECT_THROW(ConfusionMatrix(0), UsageError);
  Accuracy accuracy;
  EXPECT_THROW(accuracy.update(torch::ones({1, 3}), torch::tensor({3})), UsageError);
  EXPECT_THROW(accuracy.update(torch::ones(3), torch::tensor({0})), UsageError);
  EXPECT_THROW(Accuracy(0), UsageError);
}

TEST(Metrics, ClassesMayBeOfAnyIntegerType) {
  test::run_ranks(1, [](Context& context) {
    for (const auto type : {torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32,
                            torch::kInt64, torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
      const Tensor targets = torch::tensor({0, 1, 1}).to(type);
      Accuracy accuracy;
      accuracy.update(torch::eye(3), targets);
      EXPECT_DOUBLE_EQ(accuracy.compute(context), 2.0 / 3);
      ConfusionMatrix confusion(3);
      confusion.update(targets, targets);
      EXPECT_EQ(confusion.compute(context)[1][1].item<int>(), 2);
    }
  });
}

TEST(Metrics, ACopyCountsForItself) {
  test::run_ranks(1, [](Context& context) {
    std::vector<ConfusionMatrix> two(2, ConfusionMatrix(3));
    two[0].update(torch::tensor({1, 2}), torch::tensor({1, 1}));
    EXPECT_EQ(two[1].compute(context).sum().item<int>(), 0);
    ConfusionMatrix copy = two[0];
    two[0].reset();
    EXPECT_EQ(copy.compute(context).sum().item<int>(), 2);
  });
}

// --- predict()

struct Numbers {
  std::int64_t count;
  std::int64_t size() const { return count; }
  Tensor get(std::size_t index) const { return torch::tensor(static_cast<std::int64_t>(index)); }
};

TEST(Inference, OutputsComeInTheDatasetsOrderOnEveryWorld) {
  for (const std::int64_t count : {1, 2, 3, 7, 8, 23}) {
    for (int world = 1; world <= 4; ++world) {
      test::run_ranks(world, [&](Context& context) {
        const auto twice = [](const Tensor& x) { return torch::stack({x, x * 2}, 1); };
        const Tensor all = predict(context, twice, Numbers{count}, {.batch_size = 2});
        const Tensor x = torch::arange(count);
        EXPECT_TRUE(torch::equal(all, torch::stack({x, x * 2}, 1))) << count << " on " << world;
      });
    }
  }
}

TEST(Inference, OutputsMayHaveAnyTypeAndShape) {
  test::run_ranks(3, [](Context& context) {
    const auto check = [&context](auto model, torch::ScalarType type,
                                  const std::vector<std::int64_t>& shape) {
      const Tensor all = predict(context, model, Numbers{7}, {.batch_size = 2, .num_workers = 0});
      EXPECT_EQ(all.scalar_type(), type);
      EXPECT_EQ(all.sizes().vec(), shape);
      EXPECT_TRUE(torch::equal(all, model(torch::arange(7))));
    };
    check([](const Tensor& x) { return x > 3; }, torch::kBool, {7});
    check([](const Tensor& x) { return x.to(torch::kBFloat16); }, torch::kBFloat16, {7});
    check(
        [](const Tensor& x) {
          return x.to(torch::kFloat64).view({-1, 1, 1, 1}).expand({-1, 2, 3, 1});
        },
        torch::kFloat64, {7, 2, 3, 1});
    check([](const Tensor& x) { return torch::empty({x.size(0), 0}); }, torch::kFloat32, {7, 0});
  });
}

TEST(Inference, GathersOnTheMainProcessAlone) {
  test::run_ranks(3, [](Context& context) {
    const auto same = [](const Tensor& x) { return x; };
    const Tensor all = predict(context, same, Numbers{8}, {.batch_size = 2, .all_gather = false});
    EXPECT_EQ(all.defined(), context.is_main_process());
    if (!all.defined()) return;
    EXPECT_TRUE(torch::equal(all, torch::arange(8)));
  });
}

struct Net : torch::nn::Module {
  Net() {
    linear = register_module("linear", torch::nn::Linear(1, 2));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
    dropout->eval();
  }
  Tensor forward(Tensor x) {
    was_training = is_training();
    has_gradients = torch::GradMode::is_enabled();
    return dropout(linear(x.to(torch::kFloat32).unsqueeze(1)));
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::Dropout dropout{nullptr};
  bool was_training = true;
  bool has_gradients = true;
};

TEST(Inference, CallsTheBareModuleInEvaluationModeAndPutsItBack) {
  test::run_ranks(2, [](Context& context) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel model(net, context);
    const Tensor all = predict(context, model, Numbers{3}, {.batch_size = 1});
    EXPECT_FALSE(net->was_training);
    EXPECT_FALSE(net->has_gradients);
    EXPECT_TRUE(net->is_training());
    EXPECT_TRUE(net->linear->is_training());
    EXPECT_FALSE(net->dropout->is_training()) << "it was not before";
    EXPECT_TRUE(torch::GradMode::is_enabled());
    EXPECT_TRUE(torch::allclose(all, net->forward(torch::arange(3))));
    EXPECT_TRUE(torch::equal(predict(context, *net, Numbers{3}), all));
    torch::nn::Identity holder;
    const auto numbers = std::make_shared<Numbers>(Numbers{3});
    EXPECT_EQ(predict(context, holder, numbers).size(0), 3);
    torch::nn::Sequential layers{torch::nn::Identity(), torch::nn::Identity()};
    EXPECT_TRUE(torch::equal(predict(context, layers, numbers), torch::arange(3)));
  });
}

struct Pairs : Numbers {
  torch::data::Example<> get(std::size_t index) const {
    return {Numbers::get(index), Numbers::get(index) * 10};
  }
};

TEST(Inference, GivesTheModelTheDataOrTheWholeBatch) {
  test::run_ranks(2, [](Context& context) {
    const auto of_data = [](const Tensor& data) { return data; };
    const auto of_batch = [](const torch::data::Example<>& batch) { return batch.target; };
    EXPECT_TRUE(torch::equal(predict(context, of_data, Pairs{{5}}), torch::arange(5)));
    EXPECT_TRUE(torch::equal(predict(context, of_batch, Pairs{{5}}), torch::arange(5) * 10));
  });
}

TEST(Inference, AnEmptyDatasetAndOutputsWithoutSamplesAreRefused) {
  test::run_ranks(1, [](Context& context) {
    const auto same = [](const Tensor& x) { return x; };
    const auto mean = [](const Tensor& x) { return x.to(torch::kFloat32).mean(); };
    EXPECT_THROW(predict(context, same, Numbers{0}), UsageError);
    EXPECT_THROW(predict(context, mean, Numbers{3}), UsageError);
  });
}

// On a GPU nothing waits for it before the value is read; what is wrong is said then.
TEST(Metrics, OnAGpuAreThoseOfTheCpu) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here";
  const Data data;
  test::run_ranks(1, [&](Context& context) {
    std::vector<double> values[2];
    for (const int i : {0, 1}) {
      const torch::Device device(i == 0 ? torch::kCPU : torch::kCUDA);
      const Tensor scores = data.scores.to(device), target = data.target.to(device);
      Mean mean;
      Accuracy accuracy(2);
      ConfusionMatrix matrix(kClasses);
      for (int half = 0; half < 2; ++half) {
        mean.update_mean(scores.mean(), kSamples);
        accuracy.update(scores, target);
        matrix.update(scores, target);
        matrix.update(scores.narrow(0, 0, 0), target.narrow(0, 0, 0));
      }
      values[i] = {accuracy.compute(context), matrix.scores(context).macro.f1,
                   matrix.scores(context).accuracy};
      EXPECT_NEAR(mean.compute(context), data.scores.mean().item<double>(), 1e-6);
      if (i == 0) continue;
      accuracy.update(scores, torch::full_like(target, -1));
      EXPECT_THROW(accuracy.compute(context), UsageError);
    }
    EXPECT_EQ(values[0], values[1]);
  });
}

}  // namespace
}  // namespace ddprun
