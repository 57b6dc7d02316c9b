#include "worker_lib/checkpoint/snapshot_choice.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

namespace ddprun {
namespace {

const SnapshotOffer::Snapshot* of_step(const SnapshotOffer& offer, std::int64_t step) {
  const auto at = std::ranges::find(offer.snapshots, step, &SnapshotOffer::Snapshot::step);
  return at == offer.snapshots.end() ? nullptr : &*at;
}

bool has_part_of(const SnapshotOffer::Snapshot& snapshot, std::int32_t rank) {
  return std::ranges::find(snapshot.parts_of, rank) != snapshot.parts_of.end();
}

std::optional<SnapshotChoice> choice_of(const std::vector<SnapshotOffer>& offers, std::int64_t step,
                                        std::int32_t world_size) {
  SnapshotChoice choice{.step = step, .world_size = 0};
  std::set<std::int32_t> parts;
  std::int32_t lowest = 0;
  for (const SnapshotOffer& offer : offers) {
    const auto* const snapshot = of_step(offer, step);
    if (snapshot == nullptr) {
      choice.is_data_everywhere = choice.are_parts_in_place = false;
      continue;
    }
    const std::int32_t first = *std::ranges::min_element(snapshot->parts_of);
    if (parts.empty() || first < lowest) {
      lowest = first;
      choice.source = offer.first_rank;
      choice.world_size = snapshot->world_size;
    }
    parts.insert(snapshot->parts_of.begin(), snapshot->parts_of.end());
    for (std::int32_t rank = offer.first_rank; rank < offer.first_rank + offer.ranks; ++rank) {
      if (!has_part_of(*snapshot, rank)) choice.are_parts_in_place = false;
    }
  }
  if (parts.empty()) return std::nullopt;
  const bool has_all = std::cmp_greater_equal(parts.size(), world_size) && *parts.begin() == 0 &&
                       *parts.rbegin() == choice.world_size - 1;
  if (choice.world_size == world_size && !has_all) return std::nullopt;
  return choice;
}

}  // namespace

std::optional<SnapshotChoice> choose_snapshot(const std::vector<SnapshotOffer>& offers,
                                              std::int32_t world_size) {
  std::set<std::int64_t, std::greater<>> steps;
  for (const SnapshotOffer& offer : offers) {
    for (const auto& snapshot : offer.snapshots) steps.insert(snapshot.step);
  }
  for (const std::int64_t step : steps) {
    if (const auto choice = choice_of(offers, step, world_size)) return choice;
  }
  return std::nullopt;
}

}  // namespace ddprun
