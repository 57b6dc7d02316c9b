// JSON helpers that events, status, records and the live page share. Pure; any thread.
//
// Never pass a worker's bytes to Boost.JSON directly: they may not be UTF-8, and every line must be
// valid JSON whatever a worker wrote.
#pragma once

#include <boost/json/value.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

#include "rendezvous/common/worker_abi/worker_progress.h"

namespace ddprun::agent {

// A string as as_utf8() makes it.
boost::json::value json_text(std::string_view bytes, std::size_t bytes_max);

// A worker's progress, as agent/README.md documents it in `worker_exited`; null: never reported.
boost::json::value json_progress(const std::optional<WorkerProgress>& progress);

inline std::int64_t in_us(std::chrono::nanoseconds duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

}  // namespace ddprun::agent
