// A job's status as a person reads it: one screen of text. Pure.
//
// What is wrong stands before what is well, and of very many workers those that are behind are
// shown. The mistake to avoid: printing a name as it came; whatever a node or worker calls itself
// must not move the cursor (printable()).
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "agent/status/job_status.h"

namespace ddprun::cli {

inline constexpr std::size_t kAllRows = SIZE_MAX;

// `rows`: of workers, and of nodes, at most.
std::string status_screen(const agent::JobStatus& status, std::size_t rows);

// "15 ms", "1.2 s", "3 min 05 s", "2 h 01 min"
std::string in_words(std::chrono::microseconds duration);

}  // namespace ddprun::cli
