// A random number that no other process is likely to choose: for identifiers, not for secrets.
#pragma once

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <system_error>

namespace ddprun {

// Any thread. Not std::random_device: it executes CPUID first, which traps in a virtual machine.
// Throws where a filter refuses the call.
inline std::uint64_t random_number() {
  std::uint64_t number = 0;
  // Short reads and EINTR do not happen for so few bytes.
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return number;
}

// 16 hexadecimal digits.
inline std::string random_name() {
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(random_number()));
  return name;
}

}  // namespace ddprun
