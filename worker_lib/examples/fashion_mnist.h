// Fashion-MNIST as two tensors, for the examples that are about something else.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/images.h"

// Images [n, 784], normalised floats; labels [n], int64. Throws UsageError when the files are not in
// the folder.
inline std::pair<torch::Tensor, torch::Tensor> fashion_mnist(const std::string& folder,
                                                             ddprun::Part part) {
  auto files = ddprun::read_mnist(folder, part);
  if (!files) throw ddprun::UsageError(std::move(files.error()));
  const std::int64_t count = files->count();
  const torch::Tensor images =
      torch::from_blob(files->pixels.data(), {count, files->height * files->width}, torch::kUInt8)
          .to(torch::kFloat32);
  const torch::Tensor labels =
      torch::from_blob(files->labels.data(), {count}, torch::kUInt8).to(torch::kInt64);
  return {images.div(255).sub_(0.286).div_(0.353), labels};
}

inline torch::Tensor as_tensor(const std::vector<std::size_t>& indices) {
  return torch::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), torch::kInt64);
}
