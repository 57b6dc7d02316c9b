// How the kernel shares a processor between threads.
#pragma once

#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <optional>

namespace ddprun::rdzv {

// struct sched_attr of the kernel, in its first version, which glibc 2.36 has not and whose header cannot be included
// beside <sched.h>.
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

// The calling thread sleeps most of the time, and others wait for what it does then. Where it shares a processor with one
// that computes, the kernel (6.12 and newer) lets it run as soon as it wakes, for its slices are short; with usual ones it
// waited up to a tick, 4 ms at 250 Hz. Threads and processes that it starts have usual ones. No error.
void wake_at_once();

// `thread`: 0 is the calling one. None: there is no such thread.
inline std::optional<SchedulingAttributes> scheduling_of(pid_t thread) {
  SchedulingAttributes its;
  if (::syscall(SYS_sched_getattr, thread, &its, sizeof its, 0) != 0) return std::nullopt;
  return its;
}

}  // namespace ddprun::rdzv
