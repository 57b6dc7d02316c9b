// The minute of what is said after minutes. Tests do not wait for minutes. Pure.
#pragma once

#include <chrono>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::agent {

inline std::chrono::milliseconds minute_of(const Environment& environment) {
  const auto minute = parse_number<int>(value_or_empty(environment, "DDPRUN_TEST_MINUTE_MS"));
  return minute ? std::chrono::milliseconds(*minute) : std::chrono::minutes(1);
}

}  // namespace ddprun::agent
