// The decision of a regrouping: each rank says where it is (Place), and from all places every rank computes the same
// Plan: the donor of the state, and what each rank does. Pure.
//
// | a rank that holds | and has committed     | is          | takes the donor's state | its step          |
// |-------------------|-----------------------|-------------|-------------------------|-------------------|
// | the whole state   | as much as the donor  | kLevel      | no                      | is made again     |
// | the whole state   | one step less         | kBehind     | yes                     | is committed      |
// | a part of a state | as much as the donor  | kIncomplete | yes                     | is made again     |
// | a part of a state | one step less         | kBehind     | yes                     | is committed      |
// | none              | (its place says zero) | kNewcomer   | yes                     | see entry_point() |
//
// The donor is the first of the ranks that are the furthest: the most steps, then the most calls since, then in a step.
// There is no plan for ranks that a step which waits for all of them cannot have led to: one that is two steps behind, or
// one step and has not begun it; one that is in the donor's step after other calls.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace ddprun::recovery {

// What a rank has of the state of the training, the least first.
enum class Holds : std::int64_t {
  kNothing,  // it has taken the place of a rank that died
  kPart,     // the donor was lost while this rank received
  kWhole,
};

struct Place {
  Holds holds = Holds::kWhole;
  std::int64_t committed = 0;   // steps
  std::int64_t calls = 0;       // since the last commit, with known results
  std::int64_t is_in_step = 0;  // 0 or 1

  // Among ranks that hold the whole state the greatest is the furthest.
  auto operator<=>(const Place&) const = default;  // NOLINT(modernize-use-nullptr)
};

enum class Role { kLevel, kBehind, kIncomplete, kNewcomer };

struct Plan {
  int donor = 0;
  Place at;  // the donor's
  std::vector<Role> roles;

  bool operator==(const Plan&) const = default;
};

struct NoPlan {
  std::string why;  // a sentence

  bool operator==(const NoPlan&) const = default;
};

std::variant<Plan, NoPlan> plan(const std::vector<Place>& places);

// Where a newcomer begins, by what the mirror of the rank that died has.
enum class EntryPoint {
  kThisStep,  // at the entry of the step that the other ranks make; they have made the calls before it
  kBeforeCalls,  // after the last committed step, which it skips; it replays all calls since
  kNowhere,      // the mirror has no whole state
};

struct InMirror {
  bool has_entry = false;        // belongs to the step that is not committed
  bool has_last_entry = false;   // belongs to the last committed step
  bool has_last_effect = false;  // likewise
};

EntryPoint entry_point(const Place& donor, const InMirror& mirror);

}  // namespace ddprun::recovery
