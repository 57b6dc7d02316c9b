// A model's and an optimizer's state as named tensors, out and in. Knows the optimizers' state
// types; nothing of files. Blocking, one thread; changes nothing unless everything fits.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>

#include "rendezvous/common/result.h"
#include "worker_lib/checkpoint/tensor_arrays.h"

namespace ddprun {

inline constexpr std::string_view kModelPrefix = "model.";

// "SGD", "Adam", "AdamW", …; empty for one that is not known here.
std::string kind_of(const torch::optim::Optimizer& optimizer);

// "model.…" and "optimizer.…", not copies: where they are, as they are. Error: an optimizer that is
// not known, or that has parameters which the model lacks.
Result<NamedTensors> state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// The reverse: copies to where the model's parameters are. Error: names that are missing, unknown,
// or of another shape or type.
Result<void> restore_state(const NamedTensors& saved, const torch::nn::Module& model,
                           torch::optim::Optimizer& optimizer);

// The same for the model alone, without the prefix.
NamedTensors weights_of(const torch::nn::Module& model);
Result<void> restore_weights(const NamedTensors& saved, const torch::nn::Module& model);

}  // namespace ddprun
