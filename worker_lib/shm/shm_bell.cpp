#include "worker_lib/shm/shm_bell.h"

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
void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, Clock::time_point until) {
  timespec end{};
  timespec* at = nullptr;
  if (until != Clock::time_point::max()) {
    const auto since = until.time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since);
    end.tv_sec = seconds.count();
    end.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
    at = &end;
  }
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, value, at, nullptr, FUTEX_BITSET_MATCH_ANY);
}

}  // namespace

void wake(Bell& bell) {
  bell.rung.fetch_add(1);
  ::syscall(SYS_futex, &bell.rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ring(Bell& bell) {
  if (bell.sleepers.load() != 0) wake(bell);
}

bool spin_for(std::chrono::nanoseconds time, const std::function<bool()>& is_so) {
  constexpr int kLooksPerClock = 64;
  if (is_so()) return true;
  if (time <= time.zero()) return false;
  const auto until = Clock::now() + time;
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      pause_briefly();
      if (is_so()) return true;
    }
  } while (Clock::now() < until);
  return false;
}

bool wait_for(Bell& bell, const Patience& patience, const std::function<bool()>& is_so) {
  if (spin_for(patience.spin, is_so)) return true;
  struct Sleeper {
    explicit Sleeper(Bell& own) : bell(own) { bell.sleepers.fetch_add(1); }
    ~Sleeper() { bell.sleepers.fetch_sub(1); }
    Bell& bell;
  } const sleeper(bell);
  while (true) {
    const std::uint32_t rung = bell.rung.load();
    if (is_so()) return true;
    if (Clock::now() >= patience.until) return false;
    sleep_while(bell.rung, rung, patience.until);
  }
}

}  // namespace ddprun::shm
