#include "ddprun/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/serialize/archive.h>

#include <algorithm>

namespace ddprun {

struct DistributedSampler::State {
  std::int64_t size;
  std::int64_t num_replicas;
  std::int64_t rank;
  DistributedSamplerOptions options;

  std::int64_t epoch = 0;
  std::int64_t begin = 0;  // of the pass, within the permutation
  std::int64_t count = 0;  // of this rank's samples since begin, padding included
  std::int64_t taken = 0;  // of them
  torch::Tensor order = {};

  // Rows of num_replicas, the last one filled up from the front, dropped, or left as it is.
  void start_at(std::int64_t consumed) {
    begin = std::clamp<std::int64_t>(consumed, 0, size);
    const std::int64_t rest = size - begin;
    const std::int64_t full_rows = rest / num_replicas;
    const std::int64_t tail = rest % num_replicas;
    const bool is_in_tail = options.drop_last          ? false
                            : options.allow_duplicates ? tail > 0
                                                       : rank < tail;
    count = full_rows + (is_in_tail ? 1 : 0);
    taken = 0;
    const auto seed = options.seed + static_cast<std::uint64_t>(epoch);
    order = options.shuffle ? torch::randperm(size, at::make_generator<at::CPUGeneratorImpl>(seed),
                                              torch::kInt64)
                            : torch::arange(size, torch::kInt64);
  }
};

DistributedSampler::DistributedSampler(std::int64_t dataset_size, int num_replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>(State{dataset_size, num_replicas, rank, options})) {
  if (dataset_size < 1) throw UsageError("the dataset is empty: there is nothing to sample");
  if (num_replicas < 1 || rank < 0 || rank >= num_replicas) {
    throw UsageError("there is no rank " + std::to_string(rank) + " among " +
                     std::to_string(num_replicas));
  }
  if (options.drop_last && dataset_size < num_replicas) {
    throw UsageError("the dataset has " + std::to_string(dataset_size) + " samples for " +
                     std::to_string(num_replicas) +
                     " ranks, and drop_last leaves none of them: turn it off or use fewer ranks");
  }
  state_->start_at(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch, std::int64_t consumed) {
  state_->epoch = epoch;
  state_->start_at(consumed);
}

std::int64_t DistributedSampler::remaining() const { return state_->count - state_->taken; }

std::int64_t DistributedSampler::consumed() const {
  return state_->begin + state_->taken * state_->num_replicas;
}

std::int64_t DistributedSampler::dataset_size() const { return state_->size; }
int DistributedSampler::num_replicas() const { return static_cast<int>(state_->num_replicas); }
int DistributedSampler::rank() const { return static_cast<int>(state_->rank); }
std::uint64_t DistributedSampler::seed() const { return state_->options.seed; }
std::int64_t DistributedSampler::epoch() const { return state_->epoch; }

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  if (new_size && static_cast<std::int64_t>(*new_size) != state_->size) {
    throw UsageError("a DistributedSampler's dataset cannot change its size");
  }
  state_->taken = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  auto batch = peek(0, batch_size);
  if (batch.empty()) return std::nullopt;
  state_->taken += static_cast<std::int64_t>(batch.size());
  return batch;
}

std::vector<std::size_t> DistributedSampler::peek(std::int64_t skip, std::size_t batch_size) const {
  const auto left = static_cast<std::size_t>(std::max<std::int64_t>(remaining() - skip, 0));
  std::vector<std::size_t> batch(std::min(left, batch_size));
  const auto* const order = state_->order.const_data_ptr<std::int64_t>();
  std::int64_t at = consumed() + skip * state_->num_replicas + state_->rank;
  for (std::size_t& index : batch) {
    index = static_cast<std::size_t>(order[at % state_->size]);
    at += state_->num_replicas;
  }
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor({state_->epoch}, torch::kInt64));
  archive.write("consumed", torch::tensor({consumed()}, torch::kInt64));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  torch::Tensor epoch;
  torch::Tensor position;
  archive.read("epoch", epoch);
  archive.read("consumed", position);
  set_epoch(epoch.item<std::int64_t>(), position.item<std::int64_t>());
}

}  // namespace ddprun
