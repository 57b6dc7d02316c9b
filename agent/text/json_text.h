// What the agent's JSON has in common: events, status, records, the live page. Pure; any thread.
//
// The mistake to avoid: giving Boost.JSON the bytes of a worker. They need not be UTF-8, and a line
// must be JSON whatever a worker wrote.
#pragma once

#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

// As as_utf8() makes it.
boost::json::value json_text(std::string_view bytes, std::size_t bytes_max);

// How far a worker is, as agent/README.md documents it in `worker_exited`; null: it never said.
boost::json::value json_progress(const std::optional<WorkerProgress>& progress);

inline std::int64_t in_us(std::chrono::nanoseconds duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace ddprun::agent
