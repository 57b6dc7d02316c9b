// What all optimizers of this room share: which way a step is made, which tensors one operator takes,
// how options and states go into torch::save()'s archives.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/error.h"

namespace ddprun::optim {

// Where Python takes foreach by itself.
bool has_foreach_kernels(const torch::Device& device);

// Throws UsageError: Python's sentence `invalid`, the number, and `limits`.
void check_number(bool is_valid, const std::string& invalid, double number,
                  const std::string& limits);
void check_ways(std::optional<bool> foreach, std::optional<bool> fused);

// tensor.mul_(number) as Python calls it: C++'s own takes the factors in the other order, and rounds the
// number to half precision where the tensor has it.
void multiply_(const torch::Tensor& tensor, double number);

// The gradient as a fused operator can take it: on the CPU these read parameter, gradient and state as rows
// of memory, whatever the strides. Throws UsageError for what they cannot take.
torch::Tensor gradient_for_fused(const torch::Tensor& parameter);

// The groups' own ones. Throws UsageError for a group that was added with another optimizer's options.
template <typename Options>
Options& options_of(torch::optim::OptimizerParamGroup& group) {
  if (auto* options = dynamic_cast<Options*>(&group.options())) return *options;
  throw UsageError(
      "a parameter group has the options of another optimizer: give it those of ddprun::optim");
}

// `added` to an optimizer as `group`. LibTorch's add_param_group() of 2.15 gives a group the optimizer's
// defaults, whatever its own options are, unless it knows their class.
inline void keep_options(torch::optim::OptimizerParamGroup& group,
                         const torch::optim::OptimizerParamGroup& added) {
  if (added.has_options()) group.set_options(added.options().clone());
}

// What an optimizer keeps for a parameter; empty before its first step.
template <typename State>
State& state_in(
    ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>& states,
    const torch::Tensor& parameter) {
  auto& state = states[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// The batch of a parameter's device and type: one operator takes all of a batch. The batches are few.
template <typename Batch>
Batch& batch_of(std::vector<Batch>& batches, const Batch& empty) {
  const auto at = std::find_if(batches.begin(), batches.end(),
                               [&](const Batch& batch) { return batch.kind == empty.kind; });
  return at != batches.end() ? *at : batches.emplace_back(empty);
}

// The function that makes the step of each batch, of one for each way: the table of optim.h. The batches have all
// parameters with a gradient.
template <typename Batch, typename Options, typename Step>
Step step_for(const std::vector<Batch>& batches, const Options& options, Step single_tensors,
              Step foreach, Step fused) {
  const bool are_on_gpu = std::all_of(batches.begin(), batches.end(), [](const Batch& batch) {
    return has_foreach_kernels(batch.kind.device);
  });
  check_ways(options.foreach (), options.fused());
  if (options.fused().value_or(false)) return fused;
  const bool is_default = !options.foreach () && !options.fused();
  return options.foreach ().value_or(is_default && are_on_gpu) ? foreach : single_tensors;
}

// What a step's closure returns, called with gradients enabled; undefined without one.
torch::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure);

struct ArchiveWriter {
  torch::serialize::OutputArchive& archive;
  template <typename Value>
  void operator()(const char* name, const Value& value) const {
    archive.write(name, torch::IValue(value));
  }
  void operator()(const char* name, const torch::Tensor& tensor) const {
    if (tensor.defined()) archive.write(name, torch::IValue(tensor));
  }
};

// What an archive of torch::optim's classes lacks stays as it is.
struct ArchiveReader {
  torch::serialize::InputArchive& archive;
  template <typename Value>
  void operator()(const char* name, Value& value) const {
    torch::IValue found;
    if (archive.try_read(name, found)) value = found.to<Value>();
  }
  void operator()(const char* name, torch::Tensor& tensor) const {
    torch::IValue found;
    if (!archive.try_read(name, found)) return;
    tensor = found.isTensor() ? found.toTensor() : torch::scalar_tensor(found.toScalar());
  }
};

}  // namespace ddprun::optim
