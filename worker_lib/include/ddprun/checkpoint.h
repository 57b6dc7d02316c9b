// Checkpointer: saves a training's state so that a run that was killed at any instant continues
// with the same bits. Rank 0 writes; every rank continues from the checkpoint that rank 0 chose (it
// sends the file's content, so the others need not see the folder). One file is one safetensors
// container, which Python's `safetensors` opens: arrays "model.<parameter or buffer>" and
// "optimizer.<parameter>.<what>", and the position in the metadata. One thread; resume() is
// collective.
//
//   ddprun::Checkpointer checkpoints(context, "ckpt");
//   ddprun::TrainingPosition at = checkpoints.resume(*model, optimizer).value_or(start);
//   … checkpoints.save(*model, optimizer, at);   // on every rank; the others return at once
//
// Pass the bare module (*model of a DistributedDataParallel): its names are the ones to keep.
// Optimizers: SGD, Adam, AdamW; their settings (learning rate …) are the program's, not the file's.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "ddprun/context.h"

namespace ddprun {

class CheckpointFolder;

struct TrainingPosition {
  std::int64_t epoch = 0;     // the one that is running
  std::int64_t consumed = 0;  // samples of it that are done, over all ranks (DistributedSampler)
  std::int64_t step = 0;      // since the beginning of the training
  std::uint64_t seed = 0;
  int world_size = 1;                             // of the run that saved
  std::map<std::string, std::string> notes = {};  // the program's own; kept as they are
};

class Checkpointer {
 public:
  // Creates the folder. Throws UsageError on every rank when rank 0 cannot write there. Collective.
  Checkpointer(Context& context, const std::string& folder, int keep_last = 2);
  ~Checkpointer();

  // On return it is on the disk. Throws Failure (on rank 0) when that failed.
  void save(const torch::nn::Module& model, torch::optim::Optimizer& optimizer,
            const TrainingPosition& position);

  // Loads the newest checkpoint that is whole; nothing when there is none at all. A damaged newer
  // one is named in a warning. Throws Failure, on every rank: none is whole, or it is another
  // model's.
  std::optional<TrainingPosition> resume(torch::nn::Module& model,
                                         torch::optim::Optimizer& optimizer);

 private:
  Context& context_;
  std::unique_ptr<CheckpointFolder> folder_;
};

}  // namespace ddprun
