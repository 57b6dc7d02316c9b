// A preloaded library that shifts each process's wall clock by what the file named by
// DDPRUN_WRONG_CLOCK_FILE holds, nanoseconds as 8 bytes, also while the process runs; without it by
// 97 seconds times its pid, into the future for even pids and into the past for odd ones. Monotonic
// clocks stay correct. A wait until a wall-clock time takes as long as it would have with that clock
// when it began.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// Later than any monotonic time, before any wall-clock time: both go to the same functions.
constexpr time_t kIsWallClock = 1'000'000'000;

const std::atomic<std::int64_t>* shared_offset() {
  static const auto* const offset = []() -> const std::atomic<std::int64_t>* {
    const char* file = std::getenv("DDPRUN_WRONG_CLOCK_FILE");
    if (file == nullptr) return nullptr;
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    void* page = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    return page == MAP_FAILED ? nullptr : static_cast<const std::atomic<std::int64_t>*>(page);
  }();
  return offset;
}

std::int64_t offset_ns() {
  if (const auto* shared = shared_offset()) return shared->load(std::memory_order_relaxed);
  const std::int64_t seconds = static_cast<std::int64_t>(getpid()) * 97;
  return (getpid() % 2 == 0 ? seconds : -seconds) * kSecond;
}

timespec plus(const timespec& time, std::int64_t ns) {
  const std::int64_t sum = time.tv_sec * kSecond + time.tv_nsec + ns;
  return {static_cast<time_t>(sum / kSecond), static_cast<long>(sum % kSecond)};
}

// What the kernel, whose clock is right, is asked to wait for.
timespec truly(const timespec* until) {
  return until->tv_sec < kIsWallClock ? *until : plus(*until, -offset_ns());
}

template <class Function>
Function* original(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

#define ORIGINAL(name)                                    \
  ([] {                                                   \
    static auto* const function = original(&name, #name); \
    return function;                                      \
  }())

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int failed = ORIGINAL(clock_gettime)(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) *now = plus(*now, offset_ns());
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

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* until) {
  const timespec truth = truly(until);
  return ORIGINAL(pthread_cond_timedwait)(condition, mutex, &truth);
}

int sem_timedwait(sem_t* semaphore, const timespec* until) {
  const timespec truth = truly(until);
  return ORIGINAL(sem_timedwait)(semaphore, &truth);
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* until) noexcept {
  const timespec truth = truly(until);
  return ORIGINAL(pthread_mutex_timedlock)(mutex, &truth);
}
}
