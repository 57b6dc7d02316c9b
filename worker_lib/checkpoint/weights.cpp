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

Result<void> load(const std::string& path, const torch::nn::Module& model) {
  const auto bytes = read_file(path);
  if (!bytes) return fail(bytes.error());
  const auto content = safetensors::unpack(*bytes);
  if (!content) return fail(content.error());
  const bool is_checkpoint = content->metadata.count(kFormatKey) > 0;
  if (is_checkpoint) {
    if (const auto known = metadata_of(content->metadata); !known) return fail(known.error());
  }
  auto tensors = tensors_of(content->arrays);
  if (!tensors) return fail(std::move(tensors.error()));
  return restore_weights(is_checkpoint ? without_prefix(std::move(*tensors), kModelPrefix)
                                       : without_wrapper(std::move(*tensors), weights_of(model)),
                         model);
}

}  // namespace

void save_weights(const BareModule& model, const std::string& path) {
  const NamedTensors weights = weights_of(model.get());
  if (auto ok = check_storable(weights); !ok) throw UsageError(std::move(ok.error()));
  ArrayBuffer buffer;
  buffer.copy(weights);
  const std::string head =
      value_or_throw(safetensors::pack_head({{{"format", "pt"}}, buffer.arrays()}));
  value_or_throw(write_file_atomically(path, {head, buffer.bytes()}));
}

void load_weights(const std::string& path, const BareModule& model) {
  auto loaded = load(path, model.get());
  if (!loaded) throw UsageError(std::move(loaded.error()).with("file", path));
}

}  // namespace ddprun
