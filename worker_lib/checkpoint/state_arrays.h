// A model's and an optimizer's state as named tensors, out and in. Knows the optimizers' state
// types; nothing of files. Blocking, one thread. Throws UsageError, and changes nothing then.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>

#include "worker_lib/checkpoint/tensor_arrays.h"

namespace ddprun {

inline constexpr std::string_view kModelPrefix = "model.";

// "SGD", "Adam", "AdamW", …; empty for one that is not known here.
std::string kind_of(const torch::optim::Optimizer& optimizer);

// "model.…" and "optimizer.…", not copies: where they are, as they are. Throws for an optimizer that
// is not known, or that has parameters which the model lacks.
NamedTensors state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// The reverse, in two steps. First where each array of a file belongs: the model's own tensors, and new ones for
// the optimizer's state, where its parameters are. Of `saved` names, sizes and types are enough. Throws
// for names that are missing, unknown, or of another shape or type.
NamedTensors places_of(const NamedTensors& saved, const torch::nn::Module& model);
// Then, when the values are there, the new ones become the optimizer's state.
void take_state(const NamedTensors& places, const torch::nn::Module& model,
                torch::optim::Optimizer& optimizer);

// The same for the model alone, without the prefix.
NamedTensors weights_of(const torch::nn::Module& model);
void restore_weights(const NamedTensors& saved, const torch::nn::Module& model);

}  // namespace ddprun
