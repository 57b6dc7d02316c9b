// What the cores of one process were told, as lines that can be played again (--record, `ddpctl
// replay`): because the cores are pure, the same inputs give the same decisions, and a job that went
// wrong in the field can be looked at step by step. Pure; agent/README.md has the format.
//
// Each line is a JSON object: `core` is "group" (an agent) or "round" (the leader); the first line of
// each core has its `config`, the others an input and how many decisions came of it. Messages are
// base64 of their frames in the round protocol, which has their bounds already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "agent/core/node_core.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/round_input.h"

namespace ddprun::agent {

struct NodeBegan {
  NodeConfig config;
};
struct RoundBegan {
  rdzv::RoundConfig config;
  std::optional<rdzv::Resumption> resumption;
};
struct NodeInput {
  NodeEvent event;
};
struct InputsLost {  // the disk was too slow for these
  std::uint64_t count = 0;
};
using Recorded = std::variant<NodeBegan, RoundBegan, NodeInput, rdzv::RoundInput, InputsLost>;

struct RecordedStep {
  std::int64_t unix_us = 0;
  Recorded what;
  std::size_t decisions = 0;  // that were made then
};

std::string record_line(const RecordedStep& step);  // with its end
Result<RecordedStep> recorded_step_from(std::string_view line);

}  // namespace ddprun::agent
