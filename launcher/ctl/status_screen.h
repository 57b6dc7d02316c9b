// A job's status for people: one screen of text. Pure.
//
// Problems come first; of very many workers it shows those that are behind. Names from nodes and
// workers must go through printable(), because they could contain escape sequences.
#pragma once

#include <cstddef>
#include <string>

#include "agent/status/job_status.h"

namespace ddprun::cli {

inline constexpr std::size_t kAllRows = SIZE_MAX;

// `rows`: the most workers, and the most nodes, that are shown.
std::string status_screen(const agent::JobStatus& status, std::size_t rows);

}  // namespace ddprun::cli
