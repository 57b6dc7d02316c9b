#include "ddprun/data_loader.h"
#include "tests/unit/worker_lib/gpu.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Values = std::vector<std::int64_t>;

Values values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kInt64).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

template <typename DataLoader>
Values read_all(DataLoader& loader) {
  Values all;
  for (auto& batch : loader) {
    const Values more = values_of(batch);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

bool eventually(const std::function<bool()>& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

struct Squares {
  std::int64_t count = 20;
  std::int64_t size() const { return count; }
  std::int64_t get(std::size_t index) const { return static_cast<std::int64_t>(index * index); }
};

// The later a sample's turn, the sooner it is ready.
struct Uneven {
  std::int64_t size() const { return 40; }
  torch::Tensor get(std::size_t index) const {
    for (std::size_t i = 0; i < (40 - index) * 200; ++i) std::this_thread::yield();
    return torch::tensor(static_cast<std::int64_t>(index));
  }
};

TEST(DataLoader, GivesTheSamplersOrderWhateverTheThreadsDo) {
  DistributedSampler expected(40, 2, 1, {.shuffle = false});
  Values order;
  while (const auto batch = expected.next(3))
    order.insert(order.end(), batch->begin(), batch->end());
  for (const int threads : {0, 1, 2, 4}) {
    DataLoader loader(Uneven{}, DistributedSampler(40, 2, 1, {.shuffle = false}),
                      {.batch_size = 3, .num_workers = threads});
    EXPECT_EQ(read_all(loader), order) << threads << " threads";
    EXPECT_EQ(read_all(loader), order) << "again with " << threads;
  }
}

TEST(DataLoader, ThePositionIsThatOfTheBatchesHandedOut) {
  for (const int threads : {0, 3}) {
    DistributedSampler sampler(20, 2, 0);
    DataLoader loader(Squares{}, sampler,
                      {.batch_size = 3, .num_workers = threads, .prefetch_factor = 4});
    Values positions;
    Values left{loader.batches_left()};
    for (auto& batch : loader) {
      EXPECT_EQ(batch.size(0), static_cast<std::int64_t>(loader.indices().size()));
      positions.push_back(sampler.consumed());
      left.push_back(loader.batches_left());
    }
    EXPECT_THAT(positions, ElementsAre(6, 12, 18, 20)) << threads;
    EXPECT_THAT(left, ElementsAre(4, 3, 2, 1, 0)) << threads;
  }
}

TEST(DataLoader, APassThatIsResumedAfterABreakGoesOnWhereItStopped) {
  DataLoader whole(Squares{}, DistributedSampler(20, 1, 0, {.seed = 4}), {.batch_size = 3});
  const Values all = read_all(whole);
  DistributedSampler sampler(20, 1, 0, {.seed = 4});
  DataLoader loader(Squares{}, sampler, {.batch_size = 3, .num_workers = 2, .prefetch_factor = 3});
  Values joined;
  for (auto& batch : loader) {
    const Values more = values_of(batch);
    joined.insert(joined.end(), more.begin(), more.end());
    if (joined.size() == 9) break;
  }
  sampler.set_epoch(0, sampler.consumed());
  const Values rest = read_all(loader);
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_EQ(joined, all);
}

TEST(DataLoader, BeginsThePassAnewAfterABreak) {
  DataLoader loader(Squares{}, DistributedSampler(20, 1, 0), {.batch_size = 3});
  const Values all = read_all(loader);
  for (auto& batch : loader) {
    if (batch.size(0) == 3) break;
  }
  EXPECT_EQ(read_all(loader), all);
}

TEST(DataLoader, FollowsSetEpoch) {
  DistributedSampler sampler(20, 1, 0);
  DataLoader loader(Squares{}, sampler, {.batch_size = 4});
  const Values first = read_all(loader);
  sampler.set_epoch(1);
  const Values second = read_all(loader);
  EXPECT_NE(first, second);
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
}

TEST(DataLoader, DropLastLeavesTheShortBatchOut) {
  DataLoader loader(Squares{}, DistributedSampler(20, 1, 0), {.batch_size = 6, .drop_last = true});
  EXPECT_EQ(loader.batches_left(), 3);
  EXPECT_EQ(read_all(loader).size(), 18u);
}

TEST(DataLoader, ATotalBatchIsDividedAmongTheRanks) {
  DataLoader loader(Squares{}, DistributedSampler(20, 4, 1), {.total_batch_size = 12});
  EXPECT_EQ(loader.batch_size(), 3);
}

void expect_refused(const DataLoaderOptions& options, const std::string& said) {
  try {
    DataLoader loader(Squares{}, DistributedSampler(20, 3, 1), options);
    FAIL() << "accepted: " << said;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(said));
  }
}

TEST(DataLoader, RefusesWhatCannotBe) {
  expect_refused({}, "either batch_size");
  expect_refused({.batch_size = 4, .total_batch_size = 4}, "either batch_size");
  expect_refused({.batch_size = -4}, "either batch_size");
  expect_refused({.total_batch_size = 64}, "evenly among 3 ranks: use 63 or 66");
  expect_refused({.total_batch_size = 2}, "evenly among 3 ranks: use 3 ");
  expect_refused({.batch_size = 4, .num_workers = -1}, "num_workers is negative");
  expect_refused({.batch_size = 4, .num_workers = 1, .prefetch_factor = 0},
                 "prefetch_factor is at least 1");
  EXPECT_THROW(DataLoader(Squares{.count = 21}, DistributedSampler(20, 1, 0), {.batch_size = 1}),
               UsageError);
}

struct FailsAt {
  std::size_t bad;
  bool is_usage = false;
  std::int64_t size() const { return 20; }
  std::int64_t get(std::size_t index) const {
    if (index != bad) return 1;
    if (is_usage) throw UsageError("no such file");
    throw std::out_of_range("beyond the end");
  }
};

TEST(DataLoader, WhatADatasetThrowsComesInItsTurnWithItsSample) {
  for (const int threads : {0, 2}) {
    DistributedSampler sampler(20, 1, 0, {.shuffle = false});
    DataLoader loader(FailsAt{.bad = 13}, sampler, {.batch_size = 4, .num_workers = threads});
    int batches = 0;
    try {
      for ([[maybe_unused]] auto& batch : loader) ++batches;
      FAIL() << "nothing thrown";
    } catch (const Failure& error) {
      EXPECT_STREQ(error.what(), "the dataset could not give sample 13: beyond the end");
      EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
    }
    EXPECT_EQ(batches, 3);
    EXPECT_EQ(sampler.consumed(), 12);
  }
  DataLoader usage(FailsAt{.bad = 0, .is_usage = true}, DistributedSampler(20, 1, 0),
                   {.batch_size = 4});
  EXPECT_THROW(read_all(usage), UsageError);
}

struct RaggedSamples {
  std::int64_t size() const { return 20; }
  torch::Tensor get(std::size_t index) const {
    return torch::ones(static_cast<std::int64_t>(index % 2 + 1));
  }
};

TEST(DataLoader, ABatchThatCannotBeMadeNamesItsSamples) {
  DataLoader loader(RaggedSamples{}, DistributedSampler(20, 1, 0, {.shuffle = false}),
                    {.batch_size = 10});
  try {
    read_all(loader);
    FAIL() << "nothing thrown";
  } catch (const Failure& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("a batch of the samples 0, 1, 2, 3, 4, 5, 6, 7 and 2 more"));
    EXPECT_THAT(error.what(), HasSubstr("equal size"));
  }
}

struct RaggedBatches : RaggedSamples {
  torch::Tensor collate(std::vector<torch::Tensor> samples) const { return torch::cat(samples); }
};

TEST(DataLoader, ADatasetMayCollateItself) {
  DataLoader loader(RaggedBatches{}, DistributedSampler(20, 1, 0), {.batch_size = 4});
  EXPECT_EQ(read_all(loader).size(), 30u);
}

// Counts who is inside; sample 0 is always there at once.
struct Busy {
  struct Watch {
    std::atomic<int> inside = 0;
    std::atomic<int> given = 0;
    std::atomic<bool> is_open = true;
  };
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  std::int64_t size() const { return 1000; }
  std::int64_t get(std::size_t index) const {
    ++watch->inside;
    while (index > 0 && !watch->is_open) std::this_thread::yield();
    ++watch->given;
    --watch->inside;
    return 0;
  }
};

TEST(DataLoader, LoadsAheadWhileTheCallerComputesAndNoFurther) {
  const Busy dataset;
  DataLoader loader(dataset, DistributedSampler(1000, 1, 0),
                    {.batch_size = 5, .num_workers = 2, .prefetch_factor = 3});
  loader.start();
  ASSERT_NE(loader.next(), nullptr);
  // The one in hand and six ahead; nobody asks for more.
  EXPECT_TRUE(eventually([&] { return dataset.watch->given == 35; })) << dataset.watch->given;
  ASSERT_NE(loader.next(), nullptr);
  EXPECT_TRUE(eventually([&] { return dataset.watch->given == 40; })) << dataset.watch->given;
}

TEST(DataLoader, ItsEndWaitsForItsThreads) {
  const Busy dataset;
  dataset.watch->is_open = false;
  std::thread opener;
  {
    DataLoader loader(dataset, DistributedSampler(1000, 1, 0, {.shuffle = false}),
                      {.batch_size = 1, .num_workers = 2});
    loader.start();
    ASSERT_NE(loader.next(), nullptr);
    ASSERT_TRUE(eventually([&] { return dataset.watch->inside == 2; }));
    opener = std::thread([watch = dataset.watch] { watch->is_open = true; });
  }
  EXPECT_EQ(dataset.watch->inside, 0);
  opener.join();
}

struct Augmented {
  std::int64_t size() const { return 24; }
  torch::Tensor get(std::size_t index, at::Generator& generator) const {
    return torch::randint(1 << 30, {2}, generator) * 100 + static_cast<std::int64_t>(index);
  }
};

// By sample, whatever the order.
std::set<std::int64_t> augmented(int threads, std::int64_t batch_size, int world,
                                 std::int64_t epoch, std::uint64_t seed = 1) {
  std::set<std::int64_t> all;
  for (int rank = 0; rank < world; ++rank) {
    DistributedSampler sampler(24, world, rank, {.seed = seed});
    sampler.set_epoch(epoch);
    DataLoader loader(Augmented{}, sampler, {.batch_size = batch_size, .num_workers = threads});
    const Values more = read_all(loader);
    all.insert(more.begin(), more.end());
  }
  return all;
}

TEST(DataLoader, AugmentationDependsOnSeedEpochAndSampleAlone) {
  const auto expected = augmented(0, 4, 1, 3);
  EXPECT_EQ(expected.size(), 48u);
  EXPECT_EQ(augmented(1, 4, 1, 3), expected);
  EXPECT_EQ(augmented(3, 5, 1, 3), expected);
  EXPECT_EQ(augmented(2, 4, 3, 3), expected);
  EXPECT_NE(augmented(0, 4, 1, 2), expected);
  EXPECT_NE(augmented(0, 4, 1, 3, 2), expected);
}

TEST(DataLoader, LeavesTheCallersGeneratorAlone) {
  torch::manual_seed(7);
  const torch::Tensor expected = torch::rand(5);
  torch::manual_seed(7);
  augmented(2, 4, 1, 0);
  EXPECT_TRUE(torch::equal(torch::rand(5), expected));
}

struct ThreadReport {
  std::int64_t size() const { return 8; }
  std::pair<std::int64_t, bool> get(std::size_t) const {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return {at::get_num_threads(), sigismember(&mask, SIGTERM) == 1};
  }
};

TEST(DataLoader, ItsThreadsTakeNoSignalsAndStartNoPoolOfTheirOwn) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  DataLoader loader(ThreadReport{}, DistributedSampler(8, 1, 0),
                    {.batch_size = 8, .num_workers = 1});
  for (auto& [torch_threads, is_blocked] : loader) {
    EXPECT_THAT(values_of(torch_threads), testing::Each(1));
    EXPECT_EQ(is_blocked.dtype(), torch::kBool);
    EXPECT_THAT(values_of(is_blocked), testing::Each(1));
  }
  EXPECT_EQ(at::get_num_threads(), 2);
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 2); }).join();
  at::set_num_threads(before);
}

TEST(DataLoader, NoticesASamplerThatIsMovedInTheMiddleOfAPass) {
  DistributedSampler sampler(20, 1, 0);
  DataLoader loader(Squares{}, sampler, {.batch_size = 2});
  loader.start();
  loader.next();
  std::ignore = sampler.next(1);
  EXPECT_THROW(loader.next(), UsageError);
}

// torch::data's own datasets have no const get.
class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  Numbers() = default;
  Numbers(const Numbers& other) : copies(other.copies) { ++*copies; }
  torch::data::Example<> get(std::size_t index) override {
    const auto value = torch::tensor({static_cast<std::int64_t>(index)});
    return {value, value * 2};
  }
  std::optional<std::size_t> size() const override { return 10; }
  std::shared_ptr<int> copies = std::make_shared<int>(0);
};

template <typename Dataset>
void expect_ten_numbers(Dataset dataset) {
  DataLoader loader(std::move(dataset), DistributedSampler(10, 1, 0, {.shuffle = false}),
                    {.batch_size = 4, .num_workers = 2});
  Values data, targets;
  for (auto& batch : loader) {
    EXPECT_EQ(batch.data.dim(), 2);
    const Values more = values_of(batch.data);
    data.insert(data.end(), more.begin(), more.end());
    const Values doubled = values_of(batch.target);
    targets.insert(targets.end(), doubled.begin(), doubled.end());
  }
  EXPECT_THAT(data, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_THAT(targets, ElementsAre(0, 2, 4, 6, 8, 10, 12, 14, 16, 18));
}

TEST(DataLoader, TakesTorchsDatasetsWithStackAndWithout) {
  expect_ten_numbers(Numbers());
  expect_ten_numbers(Numbers().map(torch::data::transforms::Stack<>()));
  torch::data::datasets::TensorDataset tensors(torch::arange(6).view({3, 2}));
  DataLoader loader(tensors, DistributedSampler(3, 1, 0, {.shuffle = false}), {.batch_size = 3});
  for (auto& batch : loader) EXPECT_THAT(values_of(batch.data), ElementsAre(0, 1, 2, 3, 4, 5));
}

struct OnlyMoved {
  std::unique_ptr<int> owned = std::make_unique<int>(3);
  std::int64_t size() const { return 4; }
  std::int64_t get(std::size_t) { return (*owned)++; }
};

TEST(DataLoader, CopiesADatasetOnlyWhenItsThreadsCannotShareIt) {
  const Numbers counted;
  const DataLoaderOptions three{.batch_size = 4, .num_workers = 3};
  const DistributedSampler ten(10, 1, 0);
  DataLoader copied(counted, ten, three);
  EXPECT_GE(*counted.copies, 3);
  const auto shared = std::make_shared<Numbers>();
  DataLoader borrowed(shared, ten, three);
  EXPECT_EQ(*shared->copies, 0);
  const DistributedSampler four(4, 1, 0);
  DataLoader alone(OnlyMoved{}, four, {.batch_size = 4, .num_workers = 1});
  EXPECT_THAT(read_all(alone), ElementsAre(3, 4, 5, 6));
  EXPECT_THROW(DataLoader(OnlyMoved{}, four, three), UsageError);
}

TEST(Collate, StacksPartsAndKeepsTheRest) {
  auto [numbers, parts, names] = default_collate(std::vector{
      std::tuple(1.5f, std::pair(true, torch::arange(2)), std::string("a")),
      std::tuple(2.5f, std::pair(false, torch::arange(2) + 2), std::string("b")),
  });
  EXPECT_TRUE(torch::equal(numbers, torch::tensor({1.5f, 2.5f})));
  EXPECT_TRUE(torch::equal(parts.first, torch::tensor({true, false})));
  EXPECT_TRUE(torch::equal(parts.second, torch::arange(4).view({2, 2})));
  EXPECT_THAT(names, ElementsAre("a", "b"));
}

struct Mine {
  torch::Tensor inner = torch::ones(1);
  void for_each_tensor(auto& f) { f(inner); }
};

TEST(Collate, FindsEveryTensorOfABatch) {
  using Nested = std::map<std::string, std::optional<std::vector<torch::Tensor>>>;
  std::tuple batch(torch::data::Example<>(torch::ones(1), torch::Tensor()),
                   std::pair(Nested{{"a", std::vector{torch::ones(1), torch::ones(1)}}, {"b", {}}},
                             std::vector<std::string>{"no tensor"}),
                   Mine{});
  int count = 0;
  visit_tensors(batch, [&count](torch::Tensor&) { ++count; });
  EXPECT_EQ(count, 4);
}

struct Shown {
  torch::Tensor inner = torch::ones(1);
};
void for_each_tensor(Shown& value, const TensorVisitor& visit) { visit(value.inner); }

TEST(Collate, FindsTheTensorsOfATypeThatAFunctionShows) {
  std::pair batch(std::array{torch::ones(1), torch::ones(1)},
                  std::unordered_map<int, Shown>{{1, {}}, {2, {}}});
  int count = 0;
  visit_tensors(batch, [&count](torch::Tensor&) { ++count; });
  EXPECT_EQ(count, 4);
}

TEST(DataLoader, PinsAndCopiesToTheGpu) {
  if (!test::has_gpu()) GTEST_SKIP() << "no GPU here: pinned memory is not tested";
  DataLoader loader(Squares{}, DistributedSampler(20, 1, 0, {.shuffle = false}),
                    {.batch_size = 20, .device = torch::kCUDA});
  for (auto& batch : loader) {
    EXPECT_TRUE(batch.is_cuda());
    EXPECT_EQ(values_of(batch.cpu())[19], 361);
  }
}

}  // namespace
}  // namespace ddprun
