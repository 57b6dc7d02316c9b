// A random number that no other process is likely to choose: for identifiers, not for secrets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace ddprun {

// Any thread.
std::uint64_t random_number();

// 16 hexadecimal digits.
inline std::string random_name() {
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(random_number()));
  return name;
}

}  // namespace ddprun
