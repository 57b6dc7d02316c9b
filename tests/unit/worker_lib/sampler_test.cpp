#include "ddprun/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>

#include <fstream>
#include <set>
#include <sstream>

namespace ddprun {
namespace {

using Indices = std::vector<std::int64_t>;

Indices take_all(DistributedSampler& sampler, std::size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

std::uint64_t checksum(const Indices& indices) {
  std::uint64_t value = 0;
  for (const std::int64_t index : indices) {
    value = value * 1000003 + static_cast<std::uint64_t>(index);
  }
  return value;
}

// Recorded by make_sampler_python.py.
TEST(Sampler, GivesPythonsIndices) {
  std::ifstream file(DDPRUN_SAMPLER_PYTHON);
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    std::istringstream text(line);
    std::int64_t size = 0, epoch = 0;
    int world = 0, rank = 0;
    SamplerOptions options;
    char kind = 0;
    text >> size >> world >> rank >> options.seed >> epoch >> options.shuffle >>
        options.drop_last >> kind;
    DistributedSampler sampler(size, world, rank, options);
    sampler.set_epoch(epoch);
    const std::int64_t promised = sampler.remaining();
    const Indices indices = take_all(sampler);
    EXPECT_EQ(static_cast<std::int64_t>(indices.size()), promised) << line;
    if (kind == '#') {
      std::size_t count = 0;
      std::uint64_t sum = 0;
      text >> count >> sum;
      EXPECT_EQ(indices.size(), count) << line;
      EXPECT_EQ(checksum(indices), sum) << line;
    } else {
      Indices expected;
      for (std::int64_t index = 0; text >> index;) expected.push_back(index);
      EXPECT_EQ(indices, expected) << line;
    }
  }
  EXPECT_GT(cases, 500);
}

TEST(Sampler, ResumedInsideAnEpochGoesOnWhereItStopped) {
  for (const std::int64_t size : {23, 24, 25}) {
    DistributedSampler whole(size, 2, 1, {.seed = 5});
    whole.set_epoch(4);
    const Indices all = take_all(whole);
    DistributedSampler first(size, 2, 1, {.seed = 5});
    first.set_epoch(4);
    Indices joined;
    for (int i = 0; i < 2; ++i) {
      const auto batch = first.next(3);
      ASSERT_TRUE(batch);
      joined.insert(joined.end(), batch->begin(), batch->end());
    }
    DistributedSampler second(size, 2, 1, {.seed = 5});
    second.set_epoch(4, first.consumed());
    const Indices rest = take_all(second);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, all) << size;
  }
}

TEST(Sampler, ResumedWithAnotherWorldSizeReadsEverySampleOnce) {
  const std::int64_t size = 100;
  std::multiset<std::int64_t> seen;
  std::int64_t consumed = 0;
  for (int rank = 0; rank < 4; ++rank) {
    DistributedSampler sampler(size, 4, rank);
    for (int i = 0; i < 3; ++i) {
      const auto batch = sampler.next(5);
      seen.insert(batch->begin(), batch->end());
    }
    consumed = sampler.consumed();
  }
  for (int rank = 0; rank < 2; ++rank) {
    DistributedSampler sampler(size, 2, rank);
    sampler.set_epoch(0, consumed);
    for (const std::int64_t index : take_all(sampler)) seen.insert(index);
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), 100u);
}

TEST(Sampler, AtTheEndOfAnEpochNothingRemains) {
  DistributedSampler sampler(23, 2, 0);
  take_all(sampler);
  EXPECT_EQ(sampler.remaining(), 0);
  DistributedSampler resumed(23, 2, 0);
  resumed.set_epoch(0, sampler.consumed());
  EXPECT_EQ(resumed.remaining(), 0);
}

class Numbers : public torch::data::datasets::Dataset<Numbers> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    const auto value = torch::tensor({static_cast<std::int64_t>(index)});
    return {value, value};
  }
  std::optional<std::size_t> size() const override { return 10; }
};

TEST(Sampler, WorksInsideATorchLoaderAndFollowsSetEpoch) {
  DistributedSampler sampler(10, 2, 1, {.seed = 3});
  auto loader = torch::data::make_data_loader(Numbers().map(torch::data::transforms::Stack<>()),
                                              sampler, /*batch_size=*/2);
  for (const std::int64_t epoch : {0, 1}) {
    sampler.set_epoch(epoch);
    Indices loaded;
    for (const auto& batch : *loader) {
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
        loaded.push_back(batch.data[i].item<std::int64_t>());
      }
    }
    DistributedSampler expected(10, 2, 1, {.seed = 3});
    expected.set_epoch(epoch);
    EXPECT_EQ(loaded, take_all(expected)) << "epoch " << epoch;
  }
}

TEST(Sampler, PositionSurvivesAnArchive) {
  DistributedSampler sampler(20, 2, 0, {.seed = 1});
  sampler.set_epoch(3);
  sampler.next(4);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  DistributedSampler restored(20, 2, 0, {.seed = 1});
  restored.load(in);
  EXPECT_EQ(take_all(restored), take_all(sampler));
}

TEST(Sampler, WhatCannotWorkIsRefused) {
  EXPECT_THROW(DistributedSampler(0, 1, 0), UsageError);
  EXPECT_THROW(DistributedSampler(5, 2, 2), UsageError);
  EXPECT_THROW(DistributedSampler(1, 2, 0, {.drop_last = true}), UsageError);
  DistributedSampler sampler(5, 2, 0);
  EXPECT_THROW(sampler.reset(6), UsageError);
}

}  // namespace
}  // namespace ddprun
