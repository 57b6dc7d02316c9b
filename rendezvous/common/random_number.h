// A number that no other process chooses: for what must be told apart, not for what must be secret.
#pragma once

#include <cstdint>

namespace ddprun {

// Any thread.
std::uint64_t random_number();

}  // namespace ddprun
