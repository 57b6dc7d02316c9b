#include "ddprun/datasets.h"

#include <string>
#include <utility>

#include "ddprun/error.h"

namespace ddprun {

TensorDataset::TensorDataset(torch::Tensor data, torch::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  if (!data_.defined() || data_.dim() == 0) {
    throw UsageError("a dataset of tensors needs a first dimension, the samples");
  }
  if (target_.defined() && (target_.dim() == 0 || target_.size(0) != data_.size(0))) {
    throw UsageError("there are " + std::to_string(data_.size(0)) + " samples of data and " +
                     (target_.dim() == 0 ? "one" : std::to_string(target_.size(0))) +
                     " of targets");
  }
}

torch::data::Example<> TensorDataset::get_batch(const std::vector<std::size_t>& indices) const {
  static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
  // A view of the vector; index_select only reads it.
  const torch::Tensor chosen =
      torch::from_blob(const_cast<std::size_t*>(indices.data()),
                       {static_cast<std::int64_t>(indices.size())}, torch::kInt64);
  const auto rows = [&chosen](const torch::Tensor& tensor) {
    return tensor.index_select(0, tensor.is_cpu() ? chosen : chosen.to(tensor.device()));
  };
  return {rows(data_), target_.defined() ? rows(target_) : torch::Tensor()};
}

}  // namespace ddprun
