#include "worker_lib/recovery_core/recovery_plan.h"

#include <algorithm>
#include <utility>

namespace ddprun::recovery {
namespace {

Role role_of(const Place& place, const Place& donor) {
  if (place.holds == Holds::kNothing) return Role::kNewcomer;
  if (place.committed < donor.committed) return Role::kBehind;
  return place.holds == Holds::kPart ? Role::kIncomplete : Role::kLevel;
}

std::string name_of(std::size_t rank) { return "rank " + std::to_string(rank); }

// Empty: the rank can be where it says.
std::string why_not(std::size_t rank, const Place& place, Role role, const Plan& plan) {
  const std::int64_t missing = plan.at.committed - place.committed;
  const std::string donor = name_of(static_cast<std::size_t>(plan.donor));
  if (role == Role::kNewcomer) return {};
  if (missing < 0 || missing > 1) {
    return name_of(rank) + " has committed " + std::to_string(place.committed) + " steps and " +
           donor + " " + std::to_string(plan.at.committed) +
           ", which one step that waits for all ranks cannot cause";
  }
  if (role == Role::kBehind && place.is_in_step == 0) {
    return name_of(rank) + " has not begun the step that " + donor +
           " has committed: a step in which no rank waits for the others cannot be recovered";
  }
  if (role != Role::kBehind && place.is_in_step != 0 && place.calls != plan.at.calls) {
    return name_of(rank) + " is in a step after " + std::to_string(place.calls) + " calls and " +
           donor + " has made " + std::to_string(plan.at.calls) +
           ": do all ranks make the same calls?";
  }
  return {};
}

}  // namespace

std::variant<Plan, NoPlan> plan(const std::vector<Place>& places) {
  const auto furthest = std::ranges::max_element(places);
  if (furthest == places.end() || furthest->holds != Holds::kWhole) {
    return NoPlan{"no rank is left that has the state of the training"};
  }
  Plan result{.donor = static_cast<int>(furthest - places.begin()), .at = *furthest, .roles = {}};
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    result.roles.push_back(role_of(places[rank], result.at));
    std::string why = why_not(rank, places[rank], result.roles.back(), result);
    if (!why.empty()) return NoPlan{std::move(why)};
  }
  return result;
}

EntryPoint entry_point(const Place& donor, const InMirror& mirror) {
  if (donor.is_in_step != 0 && mirror.has_entry) return EntryPoint::kThisStep;
  return mirror.has_last_entry && mirror.has_last_effect ? EntryPoint::kBeforeCalls
                                                         : EntryPoint::kNowhere;
}

}  // namespace ddprun::recovery
