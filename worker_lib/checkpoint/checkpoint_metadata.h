// What a checkpoint says besides its arrays, as the strings of a safetensors file's metadata: the
// position, the optimizer's kind, the metric, the states of other parts; and the format's number.
// Pure; nothing of Torch.
//
// Format 2 (this one) adds to format 1: "metric", "best_metric", "state.<part>", and the arrays
// "rng.cpu" and "rng.cuda" [world size, bytes of a generator's state].
#pragma once

#include <map>
#include <optional>
#include <string>

#include "ddprun/training_position.h"
#include "worker_lib/checkpoint/safetensors.h"

namespace ddprun {

struct CheckpointMetadata {
  TrainingPosition position;
  std::string optimizer;
  std::optional<double> metric;       // of this one
  std::optional<double> best_metric;  // up to and with this one
  std::map<std::string, std::string>
      parts;  // states of what Checkpointer::register_for_checkpointing() was given
};

// A file with this key is a checkpoint; its value is the format's number.
inline constexpr const char* kFormatKey = "ddprun_format";

safetensors::Metadata strings_of(const CheckpointMetadata& metadata);

// Throws UsageError for a newer format, Failure for something that is missing or no number.
CheckpointMetadata metadata_of(const safetensors::Metadata& strings);

}  // namespace ddprun
