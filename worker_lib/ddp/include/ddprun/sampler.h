// DistributedSampler: which samples this rank reads, in which order: the same seed and epoch give the
// same batches as torch.utils.data.DistributedSampler in Python. Fits torch::data loaders and
// hand-written loops. A copy is a handle on the same sampler, because a loader keeps a copy of its
// own: set_epoch() on yours reaches the loader's. One thread.
//
//   ddprun::DistributedSampler sampler(dataset_size, context, {.seed = 1});
//   for (epoch ...) {
//     sampler.set_epoch(epoch);  // else every epoch has the same order
//     while (auto indices = sampler.next(64)) ...
//   }
#pragma once

#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddprun/context.h"

namespace ddprun {

struct DistributedSamplerOptions {
  bool shuffle = true;
  std::uint64_t seed = 0;
  // The tail that does not divide by the number of ranks: dropped, or filled up with samples from
  // the front, so that every rank makes the same number of steps.
  bool drop_last = false;
  // False (without drop_last): the tail stays as it is, so that every sample is read exactly once
  // and the first ranks may have one more than the others. For evaluation, where ranks do not meet
  // after each step; a dataset may be smaller than the number of ranks.
  bool allow_duplicates = true;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  DistributedSampler(std::int64_t dataset_size, int num_replicas, int rank,
                     const DistributedSamplerOptions& options = {});
  DistributedSampler(std::int64_t dataset_size, const Context& context,
                     const DistributedSamplerOptions& options = {})
      : DistributedSampler(dataset_size, context.world_size(), context.rank(), options) {}

  // The next pass is that of `epoch`, beginning after the first `consumed` samples of its
  // permutation (over all ranks, a number saved in a checkpoint). The world may have another size
  // than when they were read.
  void set_epoch(std::int64_t epoch, std::int64_t consumed = 0);

  // Samples of this rank's pass that are still to come.
  std::int64_t remaining() const;
  // Samples of the whole epoch that all ranks have read, this rank being typical: the `consumed` to
  // save.
  std::int64_t consumed() const;

  // What next(batch_size) would give after `skip` samples more; takes nothing. Empty at the end.
  std::vector<std::size_t> peek(std::int64_t skip, std::size_t batch_size) const;

  std::int64_t dataset_size() const;
  int num_replicas() const;
  int rank() const;
  std::uint64_t seed() const;
  std::int64_t epoch() const;

  // Starts the pass of the set epoch; a loader calls it. The size cannot be changed.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  [[nodiscard("these samples are not given again")]] std::optional<std::vector<std::size_t>> next(
      std::size_t batch_size) override;
  // The position (epoch, consumed), under the keys "epoch" and "consumed".
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
