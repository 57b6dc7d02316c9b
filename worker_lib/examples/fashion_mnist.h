// Fashion-MNIST as two tensors, for the examples that are about something else.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/idx.h"

// `part`: "train" or "t10k". Images [n, 784], normalised floats; labels [n], int64. Throws UsageError
// when the files are not in the folder.
inline std::pair<torch::Tensor, torch::Tensor> fashion_mnist(const std::string& folder,
                                                             const std::string& part) {
  const auto read = [&](const char* name) {
    auto array = ddprun::read_idx_in(folder, part + name);
    if (!array) throw ddprun::UsageError(std::move(array.error()));
    return torch::from_blob(array->bytes.data(), array->dimensions, torch::kUInt8).clone();
  };
  const torch::Tensor images = read("-images-idx3-ubyte").flatten(1).to(torch::kFloat32);
  const torch::Tensor labels = read("-labels-idx1-ubyte").to(torch::kInt64);
  return {images.div(255).sub_(0.286).div_(0.353), labels};
}

inline torch::Tensor as_tensor(const std::vector<std::size_t>& indices) {
  return torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
}
