// What a prepared standby does before its model comes to a GPU: it waits where the agent has found no room for a second model
// (link::kStandbyGpuVariable), and then for the memory of the process whose place it has taken.
#pragma once

#include <optional>
#include <string_view>

#include "worker_lib/process/agent_link.h"

namespace ddprun {

struct StandbyGpu {
  link::Preparation preparation = link::Preparation::kWhole;
  std::uint32_t index = 0;
  std::uint64_t bytes = 0;  // that its worker takes
};
// Nothing: the text is not the variable's.
std::optional<StandbyGpu> parse_standby_gpu(std::string_view text);

// Returns when the set-up may begin, with a context on this GPU. Throws Failure, and has refused to take the place, where the
// memory does not come back, or the GPU answers with an error.
void await_room_on_gpu(AgentLink& link, int gpu);

}  // namespace ddprun
