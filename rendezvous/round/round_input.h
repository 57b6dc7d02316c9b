// One input of the RoundCore: for its shell, and for recording and replaying a job
// (agent/events/core_record.h). Values.
#pragma once

#include <variant>
#include <vector>

#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct Tick {};  // deadline() has come

struct RoundInput {
  CoreTime at;
  NodeId node{};  // unused for Tick
  std::variant<Tick, ToLeader, LinkEvent> what;
};

inline std::vector<ToNode> step(RoundCore& core, const RoundInput& input) {
  if (const auto* message = std::get_if<ToLeader>(&input.what)) {
    return core.step(input.at, input.node, *message);
  }
  if (const auto* event = std::get_if<LinkEvent>(&input.what)) {
    return core.step(input.at, input.node, *event);
  }
  return core.tick(input.at);
}

}  // namespace ddprun::rdzv
