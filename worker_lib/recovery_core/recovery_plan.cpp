#include "worker_lib/recovery_core/recovery_plan.h"

#include <algorithm>

namespace ddprun::recovery {
namespace {

Role role_of(const Place& place, const Place& donor) {
  if (place.holds == Holds::kNothing) return Role::kNewcomer;
  if (place.committed < donor.committed) return Role::kBehind;
  return place.holds == Holds::kPart ? Role::kIncomplete : Role::kLevel;
}

}  // namespace

std::variant<Plan, NoPlan> plan(const std::vector<Place>& places) {
  const auto furthest = std::ranges::max_element(places);
  if (furthest == places.end() || furthest->holds != Holds::kWhole) {
    return NoPlan{"no rank is left that has the state of the training"};
  }
  Plan result{.donor = static_cast<int>(furthest - places.begin()),
              .at = *furthest,
              .roles = {},
              .replayed_from = {}};
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const Place& place = places[rank];
    const Role role = role_of(place, result.at);
    const std::int64_t missing = result.at.committed - place.committed;
    if (role != Role::kNewcomer && (missing < 0 || missing > 1)) {
      return NoPlan{"rank " + std::to_string(rank) + " has committed " +
                    std::to_string(place.committed) + " steps and rank " +
                    std::to_string(result.donor) + " " + std::to_string(result.at.committed) +
                    ", which one step that waits for all ranks cannot cause"};
    }
    result.roles.push_back(role);
    result.replayed_from.push_back(role == Role::kBehind ? 0
                                                         : std::min(place.calls, result.at.calls));
  }
  return result;
}

EntryPoint entry_point(const Place& donor, const InMirror& mirror) {
  if (donor.is_in_step != 0 && mirror.has_entry) return EntryPoint::kThisStep;
  return mirror.has_last_entry && mirror.has_last_effect ? EntryPoint::kBeforeCalls
                                                         : EntryPoint::kNowhere;
}

}  // namespace ddprun::recovery
