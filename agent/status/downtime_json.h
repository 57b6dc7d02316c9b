// What a restart costs, in JSON: in a status and in events. For sources, as json_fields.h.
#pragma once

#include "agent/status/downtime.h"
#include "agent/text/json_fields.h"

namespace ddprun::agent {

template <>
inline constexpr std::array<std::string_view, 3> kNames<DowntimeEnd>{"workers_run", "first_step",
                                                                     "step_after"};

// In JSON, among the fields of what it belongs to.
void fields(auto& json, Is<Downtime> auto& downtime) {
  json.constant("downtime_us", downtime.total());
  json("stopped_us", downtime.stopped);
  json("started_us", downtime.started);
  json("joined_us", downtime.joined);
  json("repeated_us", downtime.repeated);
  json("steps_repeated", downtime.steps_repeated);
  json("until", downtime.until);
}

}  // namespace ddprun::agent
