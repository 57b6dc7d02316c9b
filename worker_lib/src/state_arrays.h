// A model's and an optimizer's state as named tensors, out and in. Knows the optimizers' state
// types; nothing of files. Blocking, one thread; changes nothing unless everything fits.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "rendezvous/base/result.h"

namespace ddprun {

using NamedTensors = std::map<std::string, torch::Tensor>;

// "SGD", "Adam", "AdamW"; empty for one that is not known here.
std::string kind_of(const torch::optim::Optimizer& optimizer);

// "model.…" and "optimizer.…", on the CPU and contiguous. The optimizer's kind must be known.
NamedTensors state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// The reverse. Error: names that are missing, unknown, or of another shape or type.
Result<void> restore_state(const NamedTensors& saved, torch::nn::Module& model,
                           torch::optim::Optimizer& optimizer);

}  // namespace ddprun
