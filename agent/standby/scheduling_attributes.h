// struct sched_attr of the kernel, in its first version, which glibc 2.36 has not and whose header cannot be included
// beside <sched.h>.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

namespace ddprun::agent {

struct SchedulingAttributes {
  static constexpr std::uint64_t kResetOnFork = 1;  // a flag

  std::uint32_t size = 48;
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;  // of SCHED_OTHER: the length of a slice
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

// `thread`: 0 is the calling one. None: there is no such thread.
inline std::optional<SchedulingAttributes> scheduling_of(pid_t thread) {
  SchedulingAttributes its;
  if (::syscall(SYS_sched_getattr, thread, &its, sizeof its, 0) != 0) return std::nullopt;
  return its;
}

}  // namespace ddprun::agent
