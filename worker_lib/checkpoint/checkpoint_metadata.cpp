#include "worker_lib/checkpoint/checkpoint_metadata.h"

#include <cstdio>
#include <string_view>

#include "ddprun/error.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun {
namespace {

constexpr int kFormat = 2;
constexpr std::string_view kNotePrefix = "note.";
constexpr std::string_view kStatePrefix = "state.";

// To be read by people and by Python, and to the last bit.
std::string text_of(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

template <typename Number>
Number number_in(const safetensors::Metadata& strings, const char* key) {
  const auto at = strings.find(key);
  if (at == strings.end()) {
    throw Failure(ErrorCode::kDataLoss, std::string("its metadata lacks '") + key + "'");
  }
  const auto number = parse_number<Number>(at->second);
  if (!number) {
    throw Failure(ErrorCode::kDataLoss, std::string("its metadata's '") + key + "' is no number");
  }
  return *number;
}

void check_format(const safetensors::Metadata& strings) {
  if (!strings.contains(kFormatKey)) {
    throw UsageError("it is no checkpoint of a training; load_weights() opens files of weights");
  }
  const int format = number_in<int>(strings, kFormatKey);
  if (format > kFormat) {
    throw UsageError("it was written by a newer ddprun (format " + std::to_string(format) +
                     "; this program reads up to format " + std::to_string(kFormat) +
                     "): build this program with that ddprun, or name another folder");
  }
}

}  // namespace

safetensors::Metadata strings_of(const CheckpointMetadata& metadata) {
  const TrainingPosition& position = metadata.position;
  safetensors::Metadata strings{{"format", "pt"},  // what Python's tools ask for
                                {kFormatKey, std::to_string(kFormat)},
                                {"optimizer", metadata.optimizer},
                                {"epoch", std::to_string(position.epoch)},
                                {"consumed", std::to_string(position.consumed)},
                                {"step", std::to_string(position.step)},
                                {"seed", std::to_string(position.seed)},
                                {"world_size", std::to_string(position.world_size)}};
  if (metadata.metric) strings.emplace("metric", text_of(*metadata.metric));
  if (metadata.best_metric) strings.emplace("best_metric", text_of(*metadata.best_metric));
  for (const auto& [key, value] : position.notes) {
    strings.emplace(std::string(kNotePrefix) + key, value);
  }
  for (const auto& [name, state] : metadata.parts) {
    strings.emplace(std::string(kStatePrefix) + name, state);
  }
  return strings;
}

CheckpointMetadata metadata_of(const safetensors::Metadata& strings) {
  check_format(strings);
  CheckpointMetadata metadata;
  TrainingPosition& position = metadata.position;
  position.epoch = number_in<std::int64_t>(strings, "epoch");
  position.consumed = number_in<std::int64_t>(strings, "consumed");
  position.step = number_in<std::int64_t>(strings, "step");
  position.seed = number_in<std::uint64_t>(strings, "seed");
  position.world_size = number_in<int>(strings, "world_size");
  const auto if_any = [&](const char* key) {
    return strings.contains(key) ? std::optional(number_in<double>(strings, key)) : std::nullopt;
  };
  metadata.metric = if_any("metric");
  metadata.best_metric = if_any("best_metric");
  for (const auto& [key, value] : strings) {
    if (key == "optimizer") metadata.optimizer = value;
    if (key.starts_with(kNotePrefix)) position.notes.emplace(key.substr(kNotePrefix.size()), value);
    if (key.starts_with(kStatePrefix)) {
      metadata.parts.emplace(key.substr(kStatePrefix.size()), value);
    }
  }
  return metadata;
}

}  // namespace ddprun
