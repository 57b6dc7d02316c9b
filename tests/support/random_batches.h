// A range as the Trainer takes it: this rank's batches of one epoch, of random inputs and targets that are the same on
// all ranks and in all runs. One thread.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "ddprun/sampler.h"

namespace ddprun::test {

struct RandomBatch {
  torch::Tensor inputs, targets;
};

class RandomBatches {
 public:
  struct Sizes {
    std::int64_t samples = 0;
    std::int64_t inputs = 0;
    std::int64_t classes = 0;
    std::size_t batch = 0;
  };
  RandomBatches(Context& context, const Sizes& sizes)
      : sampler_(sizes.samples, context, {.seed = 3}), batch_size_(sizes.batch) {
    torch::manual_seed(100);
    inputs_ = torch::randn({sizes.samples, sizes.inputs});
    targets_ = torch::randint(sizes.classes, {sizes.samples}, torch::kInt64);
  }
  const DistributedSampler& sampler() const { return sampler_; }

  class Iterator {
   public:
    explicit Iterator(RandomBatches* batches) : batches_(batches), batch_(batches->next()) {}
    RandomBatch& operator*() { return *batch_; }
    Iterator& operator++() {
      batch_ = batches_->next();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    RandomBatches* batches_;
    std::optional<RandomBatch> batch_;
  };
  Iterator begin() { return Iterator(this); }
  std::default_sentinel_t end() { return {}; }

  std::optional<RandomBatch> next() {
    const auto indices = sampler_.next(batch_size_);
    if (!indices) return std::nullopt;
    const torch::Tensor rows =
        torch::tensor(std::vector<std::int64_t>(indices->begin(), indices->end()), torch::kInt64);
    return RandomBatch{inputs_.index_select(0, rows), targets_.index_select(0, rows)};
  }

 private:
  DistributedSampler sampler_;
  std::size_t batch_size_;
  torch::Tensor inputs_, targets_;
};

}  // namespace ddprun::test
