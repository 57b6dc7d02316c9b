// MemoryTier: the snapshots of a Checkpointer, in memory that the agent owns (snapshot_memory.h). What all ranks
// have the same of (parameters, the optimizer's state) is written by the node's ranks in equal shares;
// generators of random numbers and the module's buffers are each rank's own. One thread of each rank.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/context.h"
#include "worker_lib/checkpoint/checkpoint_metadata.h"
#include "worker_lib/checkpoint/snapshot_choice.h"
#include "worker_lib/checkpoint/tensor_arrays.h"
#include "worker_lib/process/snapshot_memory.h"

namespace ddprun {

class MemoryTier {
 public:
  // `every`: CheckpointOptions::memory_every. Where there is no memory it does nothing.
  MemoryTier(Context& context, std::shared_ptr<SnapshotMemory> memory, int every);

  // The same on every rank, in every process that is or takes the place of one.
  bool is_due(std::int64_t step);
  // Copies the state as after `step`. `describe` is called on the node's first rank. Waits for no other rank, but
  // with kMemoryAuto. Where it cannot be done it warns, once, and the snapshots are off.
  void keep(std::int64_t step, const NamedTensors& shared, const NamedTensors& buffers,
            const std::function<CheckpointMetadata()>& describe);

  // A snapshot that a round before has left, and which all ranks continue from.
  struct Kept {
    SnapshotChoice choice;
    safetensors::Metadata metadata;
    std::vector<safetensors::Place> places;      // of the data
    std::vector<safetensors::Place> buffers;     // of a rank's own
    std::optional<SnapshotMemory::Found> found;  // on this node
  };
  // The newest whose texts and own parts are whole; warns of those that are not. Collective.
  std::optional<Kept> find();
  // Puts its data into tensors, the first ones for `places`, and this rank's own part into the generators and
  // `buffers`. False, on every rank: the data are not whole, and what the tensors hold is not to be used; find() does not
  // find it again. In a prepared standby only the answer is right. Collective.
  bool restore(const Kept& kept, const std::vector<torch::Tensor>& tensors,
               const NamedTensors& buffers, std::uint64_t seed_of_new);
  // The training goes on after `step`: what is later in memory is of no use.
  void continue_from(std::int64_t step);

 private:
  using Clock = std::chrono::steady_clock;

  bool is_first_of_node() const { return local_rank_ == 0; }
  bool is_prepared() const;
  void turn_off(const std::string& why);
  void write(std::int64_t step, const NamedTensors& shared, const NamedTensors& buffers,
             const std::function<CheckpointMetadata()>& describe);
  void decide_next(std::int64_t step, Clock::time_point begun);
  bool restore_data(const Kept& kept, const std::vector<torch::Tensor>& tensors);
  struct OwnPart;
  OwnPart own_part(const Kept& kept);

  Context& context_;
  std::shared_ptr<SnapshotMemory> memory_;  // null: there is none
  const int every_;
  const int local_rank_;
  bool is_off_ = false;                         // on this rank
  std::optional<SnapshotMemory::Shape> shape_;  // of the snapshots of this round
  std::string places_;                          // in their data, as bytes
  // With kMemoryAuto: as decided after the last one; on rank 0 when that was, and how many this process has made.
  std::optional<SnapshotMemory::Due> due_;
  std::optional<std::pair<std::int64_t, Clock::time_point>> last_;
  int made_ = 0;
};

// Sends `size` bytes of a file's data from rank `source` to the receivers of all ranks, in pieces. Before each one
// fill(at, to, count) is called on every rank; at the source it writes the bytes [at, at + count) of the data to `to`.
// Collective.
template <typename Fill>
void broadcast_data(Context& context, int source, std::uint64_t size, ArrayReceiver& receiver,
                    const Fill& fill) {
  constexpr std::uint64_t kPieceBytes = 16 << 20;
  torch::Tensor piece =
      torch::empty({static_cast<std::int64_t>(std::min(kPieceBytes, size))}, torch::kUInt8);
  for (std::uint64_t at = 0; at < size; at += piece.nbytes()) {
    piece = piece.narrow(0, 0, std::min(piece.numel(), static_cast<std::int64_t>(size - at)));
    auto* const bytes = static_cast<char*>(piece.mutable_data_ptr());
    fill(at, bytes, piece.nbytes());
    context.broadcast(piece, source);
    receiver.take({bytes, piece.nbytes()});
  }
}

}  // namespace ddprun
