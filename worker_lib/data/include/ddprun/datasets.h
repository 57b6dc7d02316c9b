// TensorDataset: a dataset for DataLoader (data_loader.h) in memory. Its get_batch is const: a loader's
// threads share it. A dataset of your own is any class with these two members.
#pragma once

#include <torch/data/example.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace ddprun {

// Rows of tensors: sample i is data[i] and target[i].
class TensorDataset {
 public:
  // Equal first dimensions, else a UsageError; the target may be left out, and is undefined in the
  // batches then.
  explicit TensorDataset(torch::Tensor data, torch::Tensor target = {});

  std::int64_t size() const { return data_.size(0); }
  torch::data::Example<> get_batch(const std::vector<std::size_t>& indices) const;

 private:
  torch::Tensor data_;
  torch::Tensor target_;
};

}  // namespace ddprun
