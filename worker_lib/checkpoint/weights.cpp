#include "ddprun/weights.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "ddprun/error.h"
#include "worker_lib/checkpoint/checkpoint_metadata.h"
#include "worker_lib/checkpoint/state_arrays.h"
#include "worker_lib/checkpoint/tensor_arrays.h"
#include "worker_lib/process/files.h"

namespace ddprun {
namespace {

// Those under a prefix; the others are left out.
NamedTensors without_prefix(NamedTensors tensors, std::string_view prefix) {
  NamedTensors under;
  for (auto& [name, tensor] : tensors) {
    if (name.starts_with(prefix)) under.emplace(name.substr(prefix.size()), std::move(tensor));
  }
  return under;
}

// Python's DistributedDataParallel puts a prefix before every name of a state_dict(): those are the
// bare module's without it, unless this model has such names itself.
NamedTensors without_wrapper(NamedTensors tensors, const NamedTensors& of_model) {
  constexpr std::string_view kWrapper = "module.";
  const auto is_wrapped = [&](const auto& item) { return item.first.starts_with(kWrapper); };
  if (!std::all_of(tensors.begin(), tensors.end(), is_wrapped) ||
      std::any_of(of_model.begin(), of_model.end(), is_wrapped)) {
    return tensors;
  }
  return without_prefix(std::move(tensors), kWrapper);
}

void load(const std::string& path, const torch::nn::Module& model) {
  const std::string bytes = read_file(path);
  const auto content = safetensors::unpack(bytes);
  const bool is_checkpoint = content.metadata.contains(kFormatKey);
  if (is_checkpoint) metadata_of(content.metadata);  // throws for a format that is not known
  NamedTensors tensors = tensors_of(content.arrays);
  restore_weights(is_checkpoint ? without_prefix(std::move(tensors), kModelPrefix)
                                : without_wrapper(std::move(tensors), weights_of(model)),
                  model);
}

}  // namespace

void save_weights(const BareModule& model, const std::string& path) {
  const NamedTensors weights = weights_of(model.get());
  check_storable(weights);
  ArrayBuffer buffer;
  buffer.copy(weights);
  const std::string head = safetensors::pack_head({{{"format", "pt"}}, buffer.arrays()});
  write_file_atomically(path, {head, buffer.bytes()});
}

void load_weights(const std::string& path, const BareModule& model) {
  try {
    load(path, model.get());
  } catch (const Failure& failure) {
    throw UsageError(Error(failure.error()).with("file", path));
  }
}

}  // namespace ddprun
