#include "worker_lib/checkpoint/checkpoint_metadata.h"

#include <cstdio>
#include <string_view>

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
Result<void> read_number(const safetensors::Metadata& strings, const char* key, Number& to) {
  const auto at = strings.find(key);
  if (at == strings.end()) {
    return fail(ErrorCode::kDataLoss, std::string("its metadata lacks '") + key + "'");
  }
  const auto number = parse_number<Number>(at->second);
  if (!number) {
    return fail(ErrorCode::kDataLoss, std::string("its metadata's '") + key + "' is no number");
  }
  to = *number;
  return {};
}

Result<void> read_number_if_any(const safetensors::Metadata& strings, const char* key,
                                std::optional<double>& to) {
  if (strings.count(key) == 0) return {};
  return read_number(strings, key, to.emplace());
}

Result<void> check_format(const safetensors::Metadata& strings) {
  if (strings.count(kFormatKey) == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "it is no checkpoint of a training; load_weights() opens files of weights");
  }
  int format = 0;
  if (auto ok = read_number(strings, kFormatKey, format); !ok) return ok;
  if (format > kFormat) {
    return fail(ErrorCode::kInvalidArgument,
                "it was written by a newer ddprun (format " + std::to_string(format) +
                    "; this program reads up to format " + std::to_string(kFormat) +
                    "): build this program with that ddprun, or name another folder");
  }
  return {};
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

Result<CheckpointMetadata> metadata_of(const safetensors::Metadata& strings) {
  if (const auto ok = check_format(strings); !ok) return fail(ok.error());
  CheckpointMetadata metadata;
  TrainingPosition& position = metadata.position;
  for (const auto& read :
       {read_number(strings, "epoch", position.epoch),
        read_number(strings, "consumed", position.consumed),
        read_number(strings, "step", position.step), read_number(strings, "seed", position.seed),
        read_number(strings, "world_size", position.world_size),
        read_number_if_any(strings, "metric", metadata.metric),
        read_number_if_any(strings, "best_metric", metadata.best_metric)}) {
    if (!read) return fail(read.error());
  }
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
