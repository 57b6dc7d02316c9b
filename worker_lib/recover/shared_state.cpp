#include "worker_lib/recover/shared_state.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ddprun/serialize.h"
#include "worker_lib/process/crc32c.h"

namespace ddprun {
namespace {

using torch::Tensor;

std::string described_contents(const Tensor& tensor) {
  const Tensor dense = tensor.detach().cpu().contiguous();
  char sum[16];
  std::snprintf(sum, sizeof sum, "%08x",
                stream_sum({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}));
  return c10::str(tensor.sizes(), " ", tensor.dtype(), " with the sum ", sum);
}

}  // namespace

std::vector<Tensor> parameters_beside(const torch::nn::Module& module,
                                      const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const Tensor& parameter : module.parameters()) known.insert(parameter.unsafeGetTensorImpl());
  std::vector<Tensor> beside;
  for (const auto& group : optimizer.param_groups()) {
    std::ranges::copy_if(group.params(), std::back_inserter(beside), [&](const Tensor& parameter) {
      return known.insert(parameter.unsafeGetTensorImpl()).second;
    });
  }
  return beside;
}

torch::nn::Module with_parameters_beside(const torch::nn::Module& module,
                                         const torch::optim::Optimizer& optimizer) {
  torch::nn::Module whole(module);
  const std::vector<Tensor> beside = parameters_beside(module, optimizer);
  if (beside.empty()) return whole;
  auto others = std::make_shared<torch::nn::Module>();
  for (std::size_t i = 0; i < beside.size(); ++i) {
    others->register_parameter(std::to_string(i), beside[i], beside[i].requires_grad());
  }
  whole.register_module("of_optimizer_only", std::move(others));
  return whole;
}

std::string first_sparse(const NamedTensors& tensors) {
  const auto found = std::ranges::find_if(
      tensors, [](const auto& named) { return named.second.layout() != torch::kStrided; });
  if (found == tensors.end()) return {};
  return found->first +
         " is a sparse tensor: use dense gradients (an Embedding with sparse(true) has sparse "
         "ones)";
}

ModelDescription SharedStateComparison::next_tensors(const NamedTensors& tensors) {
  std::size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  if (calls_ == 0)
    calls_needed_ = std::clamp(bytes / bytes_at_once_ + 1, std::size_t{1}, kCallsMax);
  ModelDescription described;
  std::size_t before = 0;
  for (const auto& [name, tensor] : tensors) {
    // By where its first byte is among all.
    const std::size_t call = before < bytes ? before * calls_needed_ / bytes : calls_needed_ - 1;
    before += tensor.nbytes();
    if (call == calls_) described.emplace_back(name, described_contents(tensor));
  }
  return described;
}

SharedStateComparison::Result SharedStateComparison::next(
    Group& group, const ModelDescription& values, const std::function<NamedTensors()>& tensors) {
  std::pair<ModelDescription, ModelDescription> mine{values, {}};
  if (calls_ < calls_needed_) mine.second = next_tensors(tensors());
  calls_ += 1;
  const auto sums = group.all_gather(std::int64_t{stream_sum(to_bytes(mine))});
  if (std::ranges::all_of(sums, [&](std::int64_t sum) { return sum == sums.front(); })) return {};
  std::vector<ModelDescription> all_values, all_tensors;
  for (auto& each : group.all_gather_object(mine)) {
    all_values.push_back(std::move(each.first));
    all_tensors.push_back(std::move(each.second));
  }
  if (std::string of_values = first_difference(std::move(all_values)); !of_values.empty()) {
    return {.difference = std::move(of_values)};
  }
  return {.difference = first_difference(std::move(all_tensors)), .is_of_tensors = true};
}

}  // namespace ddprun
