// The types that Gloo can reduce. Private to worker_lib; pure.
#pragma once

#include <torch/types.h>

namespace ddprun {

// Integers that Gloo does not know as wider ones, which wrap around alike when they are cut again: a
// copy that is to be written back. Others: the tensor itself.
inline torch::Tensor widened_for_gloo(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kInt16:
    case torch::kUInt16:
      return tensor.to(torch::kInt32);
    case torch::kUInt32:
      return tensor.to(torch::kInt64);
    default:
      return tensor;
  }
}

}  // namespace ddprun
