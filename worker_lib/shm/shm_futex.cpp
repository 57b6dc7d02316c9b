#include "worker_lib/shm/shm_futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace ddprun::shm {
namespace {

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns at the latest at `until`; wakes up for no reason too.
void sleep_while(std::atomic<std::uint32_t>& number, std::uint32_t value, Clock::time_point until) {
  timespec end{};
  timespec* at = nullptr;
  if (until != Clock::time_point::max()) {
    const auto since = until.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    end.tv_sec = seconds.count();
    end.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
    at = &end;
  }
  ::syscall(SYS_futex, &number, FUTEX_WAIT_BITSET, value, at, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void wake(Futex& futex) {
  futex.wakes.fetch_add(1);
  ::syscall(SYS_futex, &futex.wakes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void notify(Futex& futex) {
  if (futex.sleepers.load() != 0) wake(futex);
}

bool spin_for(std::chrono::nanoseconds time, const std::function<bool()>& condition) {
  constexpr int kLooksPerClock = 64;
  if (condition()) return true;
  if (time <= time.zero()) return false;
  const auto until = Clock::now() + time;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      pause_briefly();
      if (condition()) return true;
    }
  } while (Clock::now() < until);
  return false;
}

bool wait_for(Futex& futex, Clock::time_point until, const std::function<bool()>& condition) {
  if (condition()) return true;
  struct Sleeper {
    explicit Sleeper(Futex& own) : futex(own) { futex.sleepers.fetch_add(1); }
    ~Sleeper() { futex.sleepers.fetch_sub(1); }
    Futex& futex;
  } const sleeper(futex);
  while (true) {
    const std::uint32_t wakes = futex.wakes.load();
    if (condition()) return true;
    if (Clock::now() >= until) return false;
    sleep_while(futex.wakes, wakes, until);
  }
}

}  // namespace ddprun::shm
