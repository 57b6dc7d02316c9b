#include "rendezvous/common/random_number.h"

#include <sys/random.h>

#include <cstdlib>

namespace ddprun {

// Not std::random_device: it executes CPUID first, which traps in a virtual machine.
std::uint64_t random_number() {
  std::uint64_t number = 0;
  // Short reads and EINTR do not happen for so few bytes.
  if (::getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}

}  // namespace ddprun
