#include "agent/text/json_text.h"

#include <boost/json.hpp>
#include <cmath>
#include <string>
#include <utility>

#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {

namespace json = boost::json;

json::value json_text(std::string_view bytes, std::size_t bytes_max) {
  const std::string valid = as_utf8(bytes, bytes_max);
  return json::value(json::string_view(valid.data(), valid.size()));
}

json::value json_progress(const std::optional<WorkerProgress>& progress) {
  if (!progress) return nullptr;
  json::object values;
  for (const NamedValue& each : progress->values) {
    // JSON has no NaN.
    values[each.name] = std::isfinite(each.value) ? json::value(each.value) : nullptr;
  }
  const std::string_view phase = name_of(progress->phase);
  return json::object{{"step", progress->step ? json::value(*progress->step) : nullptr},
                      {"total_steps", progress->total_steps},
                      {"since_step_us", in_us(progress->since_step)},
                      {"phase", json::string_view(phase.data(), phase.size())},
                      {"since_phase_us", in_us(progress->since_phase)},
                      {"collectives", progress->collectives},
                      {"values", std::move(values)}};
}

}  // namespace ddprun::agent
