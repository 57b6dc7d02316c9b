// A model's and an optimizer's state as named tensors, out and in. Knows the optimizers' state
// types; nothing of files. Blocking, one thread. Throws UsageError, and changes nothing then.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/checkpoint/tensor_arrays.h"

namespace ddprun {

inline constexpr std::string_view kModelPrefix = "model.";

// "SGD", "Adam", "AdamW", …; empty for one that is not known here.
std::string kind_of(const torch::optim::Optimizer& optimizer);

// Reads the state of a model and an optimizer again and again. As long as both have the same tensors, names are made
// once: that takes several times as long as all the rest. So a change of names alone is not seen. Holds on to the tensors
// that it has seen last.
class StateView {
 public:
  StateView() = default;
  StateView(StateView&&) = default;
  StateView& operator=(StateView&&) = default;

  // As it is now. Throws for an optimizer that is not known, or that has parameters which the model lacks.
  void update(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

  // Parameters, "model.…", and the optimizer's state, "optimizer.…"; until the next update(). The tensors themselves, which
  // may require gradients; only integers, with which an optimizer counts, are copied.
  const NamedTensors& shared() const { return shared_; }
  // The module's, "model.…", too.
  const NamedTensors& buffers() const { return named_buffers_; }
  NamedTensors take_all() &&;
  // Lets its tensors go, until the next update().
  void forget_optimizer();

 private:
  struct Field {
    std::size_t parameter = 0;
    const char* what = nullptr;
    torch::Tensor* place = nullptr;  // in shared_
  };
  struct Fields;

  NamedTensors shared_, named_buffers_;
  const void* kind_ = nullptr;  // of optimizer
  std::vector<torch::Tensor> parameters_, buffers_, of_optimizer_;
  std::vector<Field> fields_;  // of the optimizer, in the order of the parameters
};

// All of that at once.
NamedTensors state_of(const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// The reverse, in two steps. First where each array of a file belongs: the model's own tensors, and new ones for
// the optimizer's state, where its parameters are; for names that begin with `other` new ones on the CPU. Throws
// for names that are missing, unknown, or of another shape or type. With another
// prefix than kModelPrefix the file has weights only, and no name in it is one of the optimizer's.
std::vector<torch::Tensor> places_of(const std::vector<Described>& saved,
                                     const torch::nn::Module& model, std::string_view other = {},
                                     std::string_view prefix = kModelPrefix);
// Then, when the values are there, the new ones become the optimizer's state.
void take_state(const std::vector<Described>& saved, const std::vector<torch::Tensor>& values,
                const torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// Of the model alone, without the prefix.
NamedTensors weights_of(const torch::nn::Module& model);

}  // namespace ddprun
