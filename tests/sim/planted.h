// Which of the planted bugs (planted_bugs.cmake) is live. In no shipped program: only copies of the
// cores that are compiled into sim_bugs_test ask.
#pragma once

#include <string_view>

namespace ddprun::sim {

inline std::string_view planted_bug;  // none

inline bool is_planted(std::string_view name) { return name == planted_bug; }

}  // namespace ddprun::sim
