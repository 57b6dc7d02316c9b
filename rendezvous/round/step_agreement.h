// At which step boundary all workers of a round leave together, after one of its nodes was preempted, or are stopped as
// planned. Values of RoundCore's Running; pure.
//
//   event \ state   Stays               Asking                                                   Agreed
//   wanted          HoldSteps to all    ignore                                                   ignore
//   StepsHeld       ignore              of all nodes: the greatest number + 1 is the boundary    ignore
//
// A worker counts its boundaries (worker_link.h). From HoldSteps on none passes a boundary that its node has not counted in
// StepsHeld, so that the boundary is ahead of every worker. A worker that is held waits for agents alone: it has done its part of
// all steps before that boundary, and the other workers, which may be steps behind, come to the boundary without it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <variant>

#include "rendezvous/common/ids.h"

namespace ddprun::rdzv {

// Workers have at most this part of shutdown_timeout to come to the step after which they are stopped.
inline constexpr int kPartForStep = 5;

class StepAgreement {
 public:
  bool stays() const { return std::holds_alternative<Stays>(state_); }
  // True: the nodes are asked now.
  bool wanted() {
    if (!std::holds_alternative<Stays>(state_)) return false;
    state_ = Asking{};
    return true;
  }
  // The boundary, when all nodes of the round have answered.
  std::optional<std::int64_t> held(NodeId node, std::int64_t passed, std::size_t nodes) {
    auto* asking = std::get_if<Asking>(&state_);
    if (asking == nullptr) return {};
    asking->answered.insert(node);
    asking->passed = std::clamp(passed, asking->passed, kBoundaryMax);
    if (asking->answered.size() < nodes) return {};
    const std::int64_t boundary = asking->passed + 1;
    state_ = Agreed{};
    return boundary;
  }

 private:
  static constexpr std::int64_t kBoundaryMax = std::numeric_limits<std::int64_t>::max() - 1;

  struct Stays {};
  struct Asking {
    std::set<NodeId> answered;
    std::int64_t passed = 0;
  };
  struct Agreed {};
  std::variant<Stays, Asking, Agreed> state_;
};

}  // namespace ddprun::rdzv
