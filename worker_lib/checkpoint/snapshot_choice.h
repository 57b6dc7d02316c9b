// Which snapshot in the nodes' memories a round continues from. Decided from what all nodes have, so that every
// rank decides the same. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ddprun {

// What one node has, said by its first rank.
struct SnapshotOffer {
  struct Snapshot {
    std::int64_t step = 0;
    std::int32_t world_size = 1;
    std::vector<std::int32_t>
        parts_of;  // ranks whose own parts are here, by their local ranks then

    template <typename Fields>
    void fields(Fields& field) {
      field(step, world_size, parts_of);
    }
  };
  std::int32_t first_rank = 0;  // of the node, now
  std::int32_t ranks = 0;       // of the node, now
  std::vector<Snapshot> snapshots;

  template <typename Fields>
  void fields(Fields& field) {
    field(first_rank, ranks, snapshots);
  }
};

struct SnapshotChoice {
  std::int64_t step = 0;
  std::int32_t world_size = 1;  // when it was made
  std::int32_t source =
      0;  // the rank, now, whose text counts: first of the node with the lowest part
  bool is_data_everywhere = true;  // else the source gives it to all
  bool are_parts_in_place =
      true;  // each rank's own part is on its own node; else they are exchanged
};

// The newest one that is all there: the data on one node, and with the world size of then the own parts of all
// ranks, or the bits would change. With another one they change anyway, and ranks without a part begin as
// new ones do.
std::optional<SnapshotChoice> choose_snapshot(const std::vector<SnapshotOffer>& offers,
                                              std::int32_t world_size);

}  // namespace ddprun
