#include "ddprun/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize/archive.h>

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

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
    DistributedSamplerOptions options;
    char kind = 0;
    text >> size >> world >> rank >> options.seed >> epoch >> options.shuffle >>
        options.drop_last >> kind;
    Indices indices;
    for (int r = rank; r < (kind == '=' ? world : rank + 1); ++r) {
      DistributedSampler sampler(size, world, r, options);
      sampler.set_epoch(epoch);
      const std::int64_t promised = sampler.remaining();
      const Indices mine = take_all(sampler);
      EXPECT_EQ(static_cast<std::int64_t>(mine.size()), promised) << line;
      indices.insert(indices.end(), mine.begin(), mine.end());
    }
    if (kind == '#' || kind == '=') {
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
  EXPECT_GT(cases, 1000);
}

TEST(Sampler, MoreThanThereIsGivesAllThatIsLeft) {
  DistributedSampler sampler(7, 2, 0, {.shuffle = false});
  EXPECT_EQ(sampler.next(SIZE_MAX)->size(), 4u);
  EXPECT_FALSE(sampler.next(SIZE_MAX));
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

// Worlds that change again and again within an epoch, at any step and with any batch: every sample
// once, and at the end only the padding that PyTorch's own sampler adds (less than a row, from the
// front of the permutation).
TEST(Sampler, NoSequenceOfWorldSizesLosesOrRepeatsASample) {
  std::mt19937 random(11);
  const auto up_to = [&random](unsigned most) { return static_cast<int>(random() % most) + 1; };
  for (int sequence = 0; sequence < 2000; ++sequence) {
    const std::int64_t size = up_to(60);
    const DistributedSamplerOptions options{.seed = static_cast<std::uint64_t>(sequence)};
    const std::int64_t epoch = up_to(3);
    Indices permutation;
    {
      DistributedSampler alone(size, 1, 0, options);
      alone.set_epoch(epoch);
      permutation = take_all(alone);
    }
    std::multiset<std::int64_t> seen;
    std::int64_t consumed = 0;
    std::int64_t world = 0;
    std::int64_t before_last_round = 0;
    std::ostringstream history;
    history << "size " << size << ":";
    while (consumed < size) {
      world = up_to(8);
      const int steps = up_to(4);
      const auto batch_size = static_cast<std::size_t>(up_to(5));
      history << " " << steps << " x " << batch_size << " on " << world;
      before_last_round = consumed;
      std::set<std::int64_t> positions;
      for (int rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(size, static_cast<int>(world), rank, options);
        sampler.set_epoch(epoch, before_last_round);
        for (int step = 0; step < steps; ++step) {
          if (const auto batch = sampler.next(batch_size))
            seen.insert(batch->begin(), batch->end());
        }
        positions.insert(sampler.consumed());
      }
      ASSERT_EQ(positions.size(), 1u) << "ranks disagree; " << history.str();
      consumed = *positions.begin();
    }
    std::multiset<std::int64_t> expected(permutation.begin(), permutation.end());
    for (std::int64_t i = size; i < consumed; ++i) {
      expected.insert(permutation[static_cast<std::size_t>(i % size)]);
    }
    EXPECT_LT(consumed - size, world) << history.str();
    ASSERT_EQ(seen, expected) << history.str();
  }
}

TEST(Sampler, WithoutPaddingEverySampleIsOnOneRank) {
  for (std::int64_t size = 1; size < 12; ++size) {
    for (int world = 1; world < 6; ++world) {
      std::multiset<std::int64_t> seen;
      for (int rank = 0; rank < world; ++rank) {
        DistributedSampler sampler(size, world, rank, {.allow_duplicates = false});
        const std::int64_t promised = sampler.remaining();
        const Indices mine = take_all(sampler, 2);
        EXPECT_EQ(static_cast<std::int64_t>(mine.size()), promised);
        seen.insert(mine.begin(), mine.end());
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(size)) << world;
      EXPECT_EQ(std::set<std::int64_t>(seen.begin(), seen.end()).size(), seen.size()) << world;
    }
  }
}

TEST(Sampler, PeekingTakesNothing) {
  DistributedSampler sampler(10, 2, 1, {.shuffle = false});
  EXPECT_THAT(sampler.peek(1, 3), testing::ElementsAre(3, 5, 7));
  EXPECT_THAT(sampler.peek(4, 3), testing::ElementsAre(9));
  EXPECT_THAT(sampler.peek(5, 3), testing::IsEmpty());
  EXPECT_EQ(sampler.consumed(), 0);
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
  std::ignore = sampler.next(4);
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
