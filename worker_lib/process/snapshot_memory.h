// SnapshotMemory: a training's state in memory that the agent owns, so that it outlives all workers of the node
// (agent/README.md, "Snapshots in memory"). A file in memory, one per node, which every worker inherits. Two
// slots, so that a whole snapshot is left at every instant. Without LibTorch: bytes and where they lie.
//
//   | header | heads: rank 0 slot 0, slot 1, rank 1 … | own | text | data of slot 0 | data of slot 1 |
//
// In a slot there are the data, which are equal on all ranks and of which each rank of the node writes an equal
// share; a text by the node's first rank; and what each rank alone has. A rank's head is written last, with
// sums over all that it has written; a snapshot is whole when the heads of all ranks of the node say the same
// step and the same call at that step. Each rank writes its own parts only, on one thread.
//
// A rank may also sum the share of another rank, its peer, over its own values. The peer changes from snapshot to
// snapshot, and each share has one peer, so a rank whose values differ from those of all others never gets its share
// into a snapshot that is whole:
//
//   | the heads of all ranks            | the snapshot          | the next one is written                       |
//   | not yet of the same step          | is not whole          | into this slot, unless the other is older     |
//   | of one step, and their sums agree | is whole              | into the other slot                           |
//   | of one step, and a sum differs    | is never read; told   | into this slot: the one before it stays       |
//
//   auto memory = SnapshotMemory::of_this_process();           // null: there is none
//   memory->use(shape);                                        // throws: it cannot be had
//   auto part = memory->begin(local_rank, step, rank, world_size);
//   part.sum.copy(part.share.data(), from, bytes); …
//   memory->finish(part, text, own);
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "worker_lib/process/crc32c.h"
#include "worker_lib/process/owner_mark.h"
#include "worker_lib/process/shared_memory.h"

namespace ddprun {

class SnapshotMemory {
 public:
  // What all ranks of the node must agree on. Another shape is another memory: what was there is gone.
  struct Shape {
    std::int32_t ranks = 1;        // of this node
    std::uint64_t data_bytes = 0;  // of one snapshot
    std::uint64_t own_bytes = 0;   // what a rank alone has, at most
    std::uint64_t layout = 0;      // a sum over what lies where in the data

    bool operator==(const Shape&) const = default;
  };

  // That of the variable, if this process is a worker which inherited it; asked for once.
  static std::shared_ptr<SnapshotMemory> of_this_process();
  // Takes the descriptor. Null if it is no such memory.
  static std::shared_ptr<SnapshotMemory> open(rdzv::UniqueFd file);
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Lays the memory out, unless it has this shape: the first rank of the node that comes does. True: it did, and
  // what was there is gone. Throws Failure with a sentence: two snapshots do not fit into what the control group
  // or the machine has left. Then it is so for all ranks of the node, until another shape is asked for.
  // With `own_needed` ranks may have own parts of different sizes: more bytes than `shape.own_bytes` are right,
  // too, and less if these are as many. A rank that needs more lays it out anew at any time; those that write
  // meanwhile learn it from finish().
  bool use(const Shape& shape, std::optional<std::uint64_t> own_needed = std::nullopt);

  struct Part {
    int slot = 0;
    int local_rank = 0;
    std::int64_t step = 0;
    std::int32_t rank = 0;
    std::int32_t world_size = 1;
    std::uint64_t call = 0;
    std::uint64_t begin = 0;  // of the share, in the data
    std::span<char> share = {};
    StreamSum sum = {};
    std::span<char> own = {};  // room for what this rank alone has
    StreamSum own_sum = {};
    int peer = -1;  // whose share may be summed, too; -1: this rank is alone
    std::uint64_t peer_begin = 0;
    std::uint64_t peer_end = 0;
    StreamSum peer_sum = {};
    std::uint64_t values = 0;  // a sum over values that are not in the data, and equal on all ranks
    std::uint64_t number = 0;  // counts the snapshots; the peers depend on it
  };
  // The part is in the slot that is not the newest whole one; from here on that slot is not whole. `call`: how many
  // snapshots of this step the rank has begun before, in this process; the last one counts.
  Part begin(int local_rank, std::int64_t step, int rank, int world_size, std::uint64_t call = 0);
  // `part.sum` has summed the whole share, and `part.peer_sum` all or nothing of the peer's. `own` comes after what
  // `part.own_sum` has copied to `part.own`. False: the own part is too large, or the memory was laid out anew
  // meanwhile, and nothing is kept. Throws Failure with a sentence: the text is too large. Then use() throws it on all
  // ranks of the node, until forget_after() is called or another shape is asked for.
  bool finish(Part& part, std::string_view text, std::string_view own = {});

  // When the next snapshot is due, if that is decided as the training goes: of the node's ranks the first says so.
  struct Due {
    std::int64_t last = -1;
    std::int64_t next = -1;
  };
  Due due();
  void set_due(const Due& due);

  // ---- what the processes before have left; nothing is known of its sums yet
  struct Found {
    int slot = 0;
    std::int64_t step = 0;
    std::uint64_t call = 0;
    std::int32_t world_size = 1;
    std::vector<std::int32_t> ranks = {};  // of the job, by their local ranks then

    // Snapshots are newer or older by this.
    std::pair<std::int64_t, std::uint64_t> when() const { return {step, call}; }
  };
  // The steps of which every rank's head is here, the newest first. Where there is none because the memory is
  // damaged, or of another version, `why` says so.
  std::vector<Found> find(std::string* why = nullptr);
  // Two ranks of the job that have kept different values at this step.
  struct Difference {
    std::int64_t step = 0;
    std::int32_t rank = 0;
    std::int32_t other = 0;
  };
  std::optional<Difference> difference() const;
  // True for one process of the node, which is to tell of it; once, until forget_after() is called.
  bool is_first_to_tell(const Difference& difference);
  bool is_difference_told() const;
  // A sum over all values that are equal on all ranks: two nodes with as many ranks have the same.
  std::uint32_t sum_of_values(const Found& found) const;
  // Compares the sums of what one rank wrote: of its text and its own part; and of its share of the data.
  bool are_texts_whole(const Found& found, int writer) const;
  bool is_whole(const Found& found, int writer) const;
  std::string_view data(const Found& found) const;
  std::string_view share(const Found& found, int writer) const;
  std::uint32_t sum_of_share(const Found& found, int writer) const;
  std::string_view text(const Found& found) const;
  std::string_view own(const Found& found, int writer) const;
  // It turned out not to be whole.
  void forget(const Found& found, int writer);
  // What this rank wrote of later steps, and of later calls at this one; they belong to a past that is not gone on from.
  void forget_after(int local_rank, std::int64_t step,
                    std::uint64_t call = std::numeric_limits<std::uint64_t>::max());

 private:
  struct Header;
  struct Head;
  struct Places;
  SnapshotMemory(rdzv::UniqueFd file, OwnerMark mark);

  bool map(std::uint64_t bytes);
  bool is_readable() const;
  void lay_out(const Shape& shape);
  Header& header() const;
  Head& head(int writer, int slot) const;
  bool says(const Head& head, std::int64_t step) const;
  std::optional<Found> written_in(int slot) const;
  std::optional<Difference> difference_in(const Found& found) const;
  std::optional<Found> found_in(int slot) const;
  bool is_damaged() const;

  OwnDescriptor file_;
  OwnerMark mark_;
  Mapping mapping_;
  Shape shape_;  // as use() has found or made it; another rank may lay the memory out anew
};

}  // namespace ddprun
