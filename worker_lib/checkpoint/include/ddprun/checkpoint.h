// Checkpointer: saves a training's state so that a run that was killed at any instant continues
// with the same bits.
//
//   ddprun::Checkpointer checkpoints(context, "ckpt");
//   checkpoints.register_for_checkpointing("schedule", schedule);
//   ddprun::TrainingPosition at = checkpoints.resume(model, optimizer).value_or(start);
//   … checkpoints.save(model, optimizer, at);
//
// With CheckpointOptions::memory_every it also keeps snapshots in memory that ddprun owns, which outlives the
// workers: when all of them die, no more than so many steps are made again.
//
// Everything is collective: all ranks, in the same order, one thread. Rank 0 writes the file and
// sends its content at a resume, so that the others need not see the folder.
//
// The model: the bare module or what holds it (BareModule, weights.h), on whatever device: arrays
// are copied to where its parameters are, the optimizer's state beside them. Optimizers: SGD, Adam,
// AdamW, RMSprop, Adagrad; their settings (learning rate …) are the program's, not the file's: a
// schedule that is kept sets its own again. The format is described in worker_lib/README.md.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "ddprun/context.h"
#include "ddprun/metric_mode.h"
#include "ddprun/stateful.h"
#include "ddprun/training_position.h"
#include "ddprun/weights.h"

namespace ddprun {

struct CheckpointOptions {
  int keep_last = 2;  // files; older ones are removed
  // The one whose metric is the best so far is called best.safetensors, and kept beside the last
  // ones until there is a better one. None: no metric decides.
  std::optional<MetricMode> best = std::nullopt;
  // save() returns as soon as the state is copied, and a thread of rank 0 writes it. The copy stays
  // in memory, of the state's size and pinned for a GPU, for the next one: see release_memory(). A
  // save() while another is being written waits for that first.
  bool async_save = false;
  // keep() copies the state into memory every so many steps; 0: never. kMemoryAuto: as often as it takes a
  // hundredth of the steps' time. Only under a ddprun that may restart the workers.
  int memory_every = 0;
};
inline constexpr int kMemoryAuto = -1;

class Checkpointer {
 public:
  // Creates the folder. Throws UsageError on every rank when rank 0 cannot write there. Collective.
  Checkpointer(Context& context, const std::string& folder, const CheckpointOptions& options = {});
  // Waits until an asynchronous save is on the disk; an error that nobody asked for is logged.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  // A part whose state goes into every checkpoint under this name, and comes back in resume(). Call
  // it before either; the part must outlive this. state_dict() is called on rank 0,
  // load_state_dict() on all. One that a checkpoint lacks begins as it is, with a warning.
  void register_for_checkpointing(std::string name, Stateful& part);

  // On return it is on the disk or, with async_save, copied. The generators of random numbers of all
  // ranks go with it (Torch's own for the CPU and for the rank's CUDA device). `metric`: rank 0's
  // decides whether it is the best; NaN never is. Throws Failure on every rank when it could not be
  // written, or when the one before it could not: the older checkpoints remain.
  void save(const BareModule& model, torch::optim::Optimizer& optimizer,
            const TrainingPosition& position, std::optional<double> metric = std::nullopt);

  // Call it after every step, where a checkpoint could be made: when memory_every says so it copies the state into
  // memory, two snapshots of it per node, of which each rank copies its share (300 MB on 2 ranks: 25 ms). Each rank's
  // random numbers and the module's buffers are kept as they are on that rank. state_dict() of the parts is
  // called on the first rank of every node. Where there is no room, or the state changes its shape, it says so once,
  // and there are no more snapshots. Waits for other ranks only with kMemoryAuto. Holds on to the tensors of the
  // last model and optimizer until release_memory().
  void keep(const BareModule& model, torch::optim::Optimizer& optimizer,
            const TrainingPosition& position);
  // Whether keep() copies after this step: for a program whose parts have to prepare their state.
  bool keeps_after(std::int64_t step) const;

  // Returns when the last save() is on the disk. Throws Failure on every rank if that failed. With
  // async_save call it before the program ends.
  void wait();

  // wait(), after which the memory of the copy is given back to the system, and what keep() holds. The next
  // save() takes it again, which makes that one slower.
  void release_memory();

  // Loads the newest snapshot or checkpoint that is whole, after a warning for each newer one that is damaged;
  // nothing when there is none at all. The random numbers of rank r go on where those of rank r
  // were; a rank that was not there is seeded by the position's seed and step and its rank. Throws
  // UsageError on every rank: none is whole, it is another model's, a newer format's, unreadable.
  [[nodiscard("the position from which the training goes on")]] std::optional<TrainingPosition>
  resume(const BareModule& model, torch::optim::Optimizer& optimizer);

  // Of the file that this wrote last, or resumed from; nothing: neither, or it resumed from a snapshot.
  std::optional<std::int64_t> step_on_disk() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ddprun
