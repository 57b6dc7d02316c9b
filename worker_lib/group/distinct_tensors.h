// Of tensors of which some are the same one, each once, in the order of the first: C++'s
// Module::parameters() has a parameter as often as modules share it. Private to worker_lib; pure.
#pragma once

#include <torch/types.h>

#include <unordered_set>
#include <vector>

namespace ddprun {

inline std::vector<torch::Tensor> distinct_tensors(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> distinct;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) distinct.push_back(tensor);
  }
  return distinct;
}

}  // namespace ddprun
