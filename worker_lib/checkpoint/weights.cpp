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

// The prefix of all names in a file of weights, which is to be left out: Python's DistributedDataParallel puts one
// before every name of a state_dict(). Empty where this model has such names itself.
std::string_view prefix_of(const safetensors::Head& head, const NamedTensors& of_model) {
  constexpr std::string_view kWrapper = "module.";
  const auto is_wrapped = [&](const std::string& name) { return name.starts_with(kWrapper); };
  return std::ranges::all_of(head.places, is_wrapped, &safetensors::Place::name) &&
                 std::ranges::none_of(of_model, is_wrapped, &NamedTensors::value_type::first)
             ? kWrapper
             : std::string_view();
}

void load(const std::string& path, const torch::nn::Module& model) {
  const std::string bytes = read_file(path);
  auto head = safetensors::read_head(bytes, bytes.size());
  const auto data = std::string_view(bytes).substr(head.size);
  if (head.checksum) check_crc(head, safetensors::continue_crc(head.crc, data));
  const bool is_checkpoint = head.metadata.contains(kFormatKey);
  if (is_checkpoint) metadata_of(head.metadata);  // throws for a format that is not known
  const auto prefix = is_checkpoint ? kModelPrefix : prefix_of(head, weights_of(model));
  std::erase_if(head.places, [&](const auto& place) { return !place.name.starts_with(prefix); });
  const auto weights = places_of(described_by(head.places), model, {}, prefix);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i].copy_(tensor_of(head.places[i], data));
  }
}

}  // namespace

void save_weights(const BareModule& model, const std::string& path) {
  const NamedTensors weights = weights_of(model.get());
  check_storable(weights);
  ArrayBuffer buffer;
  buffer.copy(weights);
  const auto head = safetensors::pack_head({{"format", "pt"}}, buffer.places(), buffer.bytes());
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
