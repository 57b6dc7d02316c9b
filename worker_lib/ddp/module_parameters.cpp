#include "worker_lib/ddp/module_parameters.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <functional>
#include <sstream>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_set>

#include "worker_lib/ddp/model_comparison.h"

namespace ddprun {
namespace {

ModelDescription description_of(const torch::nn::Module& module, const DdpOptions& options) {
  std::ostringstream chosen;
  chosen << std::boolalpha << "{bucket_bytes_cap=" << options.bucket_bytes_cap
         << ", first_bucket_bytes_cap=" << first_bucket_bytes_of(options)
         << ", find_unused_parameters=" << options.find_unused_parameters
         << ", static_graph=" << options.static_graph
         << ", broadcast_buffers=" << options.broadcast_buffers
         << ", hook=" << static_cast<bool>(options.comm_hook) << "}";
  ModelDescription description{{"DdpOptions", chosen.str()}};
  const auto describe = [&](const auto& item, const std::string& what) {
    const torch::Tensor& tensor = item.value();
    description.emplace_back(item.key(), c10::str(tensor.sizes(), ' ', tensor.scalar_type(), what));
  };
  for (const auto& item : module.named_parameters()) {
    // Gradients lie in the buckets as their parameters do in memory.
    const bool is_contiguous = item.value().is_contiguous();
    describe(item, c10::str(is_contiguous ? "" : c10::str(" strides ", item.value().strides()),
                            item.value().requires_grad() ? "" : " without gradient"));
  }
  for (const auto& item : module.named_buffers()) describe(item, " buffer");
  return description;
}

bool gives_sparse_gradients(const torch::nn::Module& module) {
  const auto* embedding = module.as<torch::nn::EmbeddingImpl>();
  const auto* bag = module.as<torch::nn::EmbeddingBagImpl>();
  return (embedding && embedding->options.sparse()) || (bag && bag->options.sparse());
}

}  // namespace

std::vector<torch::Tensor> distinct_tensors(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> distinct;
  std::unordered_set<const void*> seen;
  for (const torch::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) distinct.push_back(tensor);
  }
  return distinct;
}

std::vector<torch::Tensor> distinct_parameters(const torch::nn::Module& module) {
  return distinct_tensors(module.parameters());
}

std::int64_t first_bucket_bytes_of(const DdpOptions& options) {
  const bool is_default = options.bucket_bytes_cap == DdpOptions().bucket_bytes_cap;
  return options.first_bucket_bytes_cap.value_or(
      is_default ? std::int64_t{c10d::kDefaultFirstBucketBytes} : options.bucket_bytes_cap);
}

void verify_same_model(Group& group, const torch::nn::Module& module, const DdpOptions& options) {
  if (group.size() == 1) return;
  const ModelDescription description = description_of(module, options);
  // A hash first: descriptions of large models are long.
  const auto hashes = group.all_gather(std::hash<std::string>()(to_bytes(description)));
  if (std::equal(hashes.begin() + 1, hashes.end(), hashes.begin())) return;
  throw UsageError("the ranks have built different models: " +
                   first_difference(group.all_gather_object(description)) +
                   "; every rank must give DistributedDataParallel the same model and options");
}

Parameters parameters_of(const torch::nn::Module& module) {
  Parameters found;
  std::unordered_set<const void*> seen;
  const auto add = [&](const std::string& prefix, const torch::nn::Module& owner) {
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) {
      const torch::Tensor& tensor = item.value();
      if (!tensor.requires_grad() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      found.names.emplace(found.tensors.size(),
                          prefix.empty() ? item.key() : prefix + "." + item.key());
      found.tensors.push_back(tensor);
      found.are_sparse.push_back(gives_sparse_gradients(owner));
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
  if (found.tensors.empty()) {
    throw UsageError(
        "DistributedDataParallel needs a module with a parameter that requires a "
        "gradient; this one has none: use it as it is");
  }
  const torch::Device first = found.tensors[0].device();
  for (std::size_t i = 1; i < found.tensors.size(); ++i) {
    const torch::Device other = found.tensors[i].device();
    if (first.type() == other.type()) continue;
    throw UsageError(found.names.at(0) + " is on " + first.str() + " and " + found.names.at(i) +
                     " on " + other.str() +
                     "; move the whole module to one device before it becomes distributed");
  }
  return found;
}

void refuse_sparse_over_nccl(const Parameters& parameters, c10d::ProcessGroup& group) {
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const torch::Device device = parameters.tensors[i].device();
    if (!parameters.are_sparse[i] || !device.is_cuda()) continue;
    if (group.getBackend(device.type())->getBackendName() != "nccl") continue;
    throw UsageError("the gradient of " + parameters.names.at(i) +
                     " is sparse, and NCCL adds up no sparse tensors: make the embedding without "
                     "sparse(true), or choose the backend gloo");
  }
}

}  // namespace ddprun
