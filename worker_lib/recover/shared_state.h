// What all ranks of a training have the same of: parameters (also those that the optimizer has and the model lacks) and the
// optimizer's state. A module's buffers are each rank's own. Blocking, one thread.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <string>
#include <vector>

#include "ddprun/collectives.h"
#include "worker_lib/checkpoint/tensor_arrays.h"
#include "worker_lib/ddp/model_comparison.h"

namespace ddprun {

// Parameters of the optimizer that are none of the module's.
std::vector<torch::Tensor> parameters_beside(const torch::nn::Module& module,
                                             const torch::optim::Optimizer& optimizer);

// A module with the same submodules, parameters and buffers, and one submodule more, which has parameters_beside().
torch::nn::Module with_parameters_beside(const torch::nn::Module& module,
                                         const torch::optim::Optimizer& optimizer);

// A sentence on the first tensor that is sparse, and so can be neither sent nor compared; empty: there is none.
std::string first_sparse(const NamedTensors& tensors);

// Compares what ranks must have the same of, some of the tensors at each call: of small states all, of large ones the next
// kBytesAtOnce, or as many as it takes to be through in kCallsMax calls.
class SharedStateComparison {
 public:
  static constexpr std::size_t kBytesAtOnce = std::size_t{64} << 20;
  static constexpr std::size_t kCallsMax = 8;

  explicit SharedStateComparison(std::size_t bytes_at_once = kBytesAtOnce)
      : bytes_at_once_(bytes_at_once) {}

  struct Result {
    std::string
        difference;  // "option lr of parameter group 0 is 0.1 on rank 0 and 0.2 on rank 1"; empty: none
    bool is_of_tensors = false;  // which may have differed in earlier calls, too
  };
  // Collective; the same result on all ranks. `values` are compared at each call.
  Result next(Group& group, const ModelDescription& values,
              const std::function<NamedTensors()>& tensors);
  // All tensors have been compared.
  bool is_through() const { return calls_ >= calls_needed_; }

 private:
  ModelDescription next_tensors(const NamedTensors& tensors);

  std::size_t bytes_at_once_;
  std::size_t calls_ = 0;
  std::size_t calls_needed_ = 1;
};

}  // namespace ddprun
