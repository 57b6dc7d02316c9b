// Checkpointer: saves a training's state so that a run that was killed at any instant continues
// with the same bits. Rank 0 writes; every rank continues from the checkpoint that rank 0 chose (it
// sends the file's content, so the others need not see the folder). One file is one safetensors
// container, which Python's `safetensors` opens: arrays "model.<parameter or buffer>",
// "optimizer.<parameter>.<what>" and "rng.<device>", the position and the other parts' states in
// the metadata. latest.safetensors and best.safetensors name the newest and the best one.
//
//   ddprun::Checkpointer checkpoints(context, "ckpt");
//   checkpoints.also_keep("schedule", schedule);
//   ddprun::TrainingPosition at = checkpoints.resume(model, optimizer).value_or(start);
//   … checkpoints.save(model, optimizer, at);
//
// Everything is collective: all ranks, in the same order. One thread. The mistake to avoid: calling
// save() on rank 0 only.
//
// The model: the bare module or what holds it (BareModule, weights.h); the names are the bare
// module's either way, so what one saved the other resumes. On whatever device: arrays are copied to
// where the model's parameters are (Python's map_location), the optimizer's state beside them.
// Optimizers: SGD, Adam, AdamW, RMSprop, Adagrad; their settings (learning rate …) are the
// program's, not the file's: a schedule that is kept sets its own again.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>

#include "ddprun/context.h"
#include "ddprun/stateful.h"
#include "ddprun/training_position.h"
#include "ddprun/weights.h"

namespace ddprun {

enum class Best { kNone, kHighest, kLowest };

struct CheckpointOptions {
  int keep_last = 2;  // files; older ones are removed
  // Which metric makes a checkpoint the best so far: it is called best.safetensors and kept beside
  // the last ones until there is a better one.
  Best best = Best::kNone;
  // save() returns as soon as the state is copied, and a thread of rank 0 writes it: checksum,
  // write, sync, rename. The copy stays in memory for the next one. A save() while another is being
  // written waits for that first.
  bool is_asynchronous = false;
};

class Checkpointer {
 public:
  // Creates the folder. Throws UsageError on every rank when rank 0 cannot write there. Collective.
  Checkpointer(Context& context, const std::string& folder, const CheckpointOptions& options = {});
  // Waits until an asynchronous save is on the disk; an error that nobody asked for is logged.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // A part whose state goes into every checkpoint under this name, and comes back in resume(). Call
  // it before either; the part must outlive this. save_state() is called on rank 0, load_state() on
  // all. One that a checkpoint lacks begins as it is, with a warning.
  void also_keep(std::string name, Stateful& part);

  // On return it is on the disk or, asynchronously, copied. The generators of random numbers of all
  // ranks go with it (Torch's own for the CPU and for the rank's CUDA device). `metric` decides
  // whether it is the best (rank 0's; NaN never is). Throws Failure on every rank when it could not
  // be written, or when the asynchronous one before it could not: the older checkpoints remain.
  void save(const BareModule& model, torch::optim::Optimizer& optimizer,
            const TrainingPosition& position, std::optional<double> metric = std::nullopt);

  // Returns when the last save() is on the disk. Throws Failure on every rank if that failed. With
  // asynchronous saving call it before the program ends.
  void wait();

  // Loads the newest checkpoint that is whole; nothing when there is none at all. A damaged newer
  // one is named in a warning. The random numbers of rank r go on where those of rank r were; a rank
  // that was not there gets a seed made of the position's seed and step and its rank. Throws
  // Failure, on every rank: none is whole, it is another model's, a newer format's, unreadable.
  std::optional<TrainingPosition> resume(const BareModule& model,
                                         torch::optim::Optimizer& optimizer);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ddprun
