#include "rendezvous/common/scheduling.h"

#include <sched.h>

#include <tuple>

namespace ddprun::rdzv {

void wake_at_once() {
  constexpr std::uint64_t kSliceNs = 100'000;  // the least that the kernel takes
  auto its = scheduling_of(0);
  // Of its children, those with a nice value below 0 would lose that, too.
  if (!its || its->policy != SCHED_OTHER || its->nice < 0) return;
  its->runtime_ns = kSliceNs;
  its->flags |= SchedulingAttributes::kResetOnFork;
  std::ignore = ::syscall(SYS_sched_setattr, 0, &*its, 0);
}

}  // namespace ddprun::rdzv
