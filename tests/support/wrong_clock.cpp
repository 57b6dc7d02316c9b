// A preloaded library that shifts each process's wall clock by 97 seconds times its pid, into the
// future for even pids and into the past for odd ones. Monotonic clocks stay correct.
#include <dlfcn.h>
#include <sys/time.h>
#include <unistd.h>

#include <ctime>

namespace {

time_t offset() {
  const auto seconds = static_cast<time_t>(getpid()) * 97;
  return getpid() % 2 == 0 ? seconds : -seconds;
}

int true_clock(clockid_t clock, timespec* now) {
  static const auto function =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(dlsym(RTLD_NEXT, "clock_gettime"));
  return function(clock, now);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int failed = true_clock(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += offset();
  return failed;
}

time_t time(time_t* to) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != nullptr) *to = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return 0;
}
}
