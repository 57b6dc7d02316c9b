// The inputs of the cores of one process, as lines that can be replayed (--record, `ddpctl
// replay`): the cores are pure, so the same inputs give the same decisions. Pure; agent/README.md
// has the format.
//
// Each line is a JSON object. `core` is "group" (an agent), "round" (the leader), "hang" (what the ranks
// were doing), "response" (what follows verdicts) or "none" (lines were lost). The first line of each core has its `config`, the others have an input and the number
// of decisions that followed. Messages are base64 of their frames in the round protocol.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/core/hang_response_core.h"
#include "agent/core/node_core.h"
#include "rendezvous/common/result.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/round_core.h"

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
struct ResponseBegan {  // the core that follows verdicts that ranks hang
  bool ends = false;
};
struct ResponseInput {
  hang_response::Event event;
};
struct InputsLost {  // were not recorded, because the disk was too slow
  std::uint64_t count = 0;
};
// What the records of ranks said at a moment: of this node's ranks at the end of a round, or of all ranks when
// it was found that some of them hang. `decisions` is the number of verdicts that followed.
struct CallsSeen {
  Round round{};
  bool is_end = false;  // of the round
  int world_size = 1;
  rdzv::HangRules rules = {};
  std::vector<rdzv::RankCalls> ranks = {};
};
using Recorded = std::variant<NodeBegan, RoundBegan, NodeInput, rdzv::RoundInput, InputsLost,
                              CallsSeen, ResponseBegan, ResponseInput>;

struct RecordedStep {
  std::int64_t unix_us = 0;
  Recorded what;
  std::size_t decisions = 0;  // number of actions or messages that the core returned
};

std::string record_line(const RecordedStep& step);  // with a newline
Result<RecordedStep> recorded_step_from(std::string_view line);

}  // namespace ddprun::agent
