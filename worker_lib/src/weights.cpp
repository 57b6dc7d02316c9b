#include "ddprun/weights.h"

#include <utility>

#include "ddprun/error.h"
#include "worker_lib/src/checkpoint_metadata.h"
#include "worker_lib/src/files.h"
#include "worker_lib/src/state_arrays.h"
#include "worker_lib/src/tensor_arrays.h"

namespace ddprun {
namespace {

// A checkpoint has the model's arrays under a prefix, among others.
NamedTensors without_the_rest(NamedTensors tensors) {
  NamedTensors weights;
  for (auto& [name, tensor] : tensors) {
    if (name.starts_with(kModelPrefix)) {
      weights.emplace(name.substr(kModelPrefix.size()), std::move(tensor));
    }
  }
  return weights;
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
  return restore_weights(is_checkpoint ? without_the_rest(std::move(*tensors)) : *tensors, model);
}

}  // namespace

void save_weights(const BareModule& model, const std::string& path) {
  const NamedTensors weights = weights_of(model.get());
  if (auto ok = check_storable(weights); !ok) throw UsageError(std::move(ok.error()));
  ArrayBuffer buffer;
  buffer.copy(weights);
  const std::string head = safetensors::pack_head({{{"format", "pt"}}, buffer.arrays()});
  value_or_throw(write_file_atomically(path, {head, buffer.bytes()}));
}

void load_weights(const std::string& path, const BareModule& model) {
  auto loaded = load(path, model.get());
  if (!loaded) throw UsageError(std::move(loaded.error()).with("file", path));
}

}  // namespace ddprun
