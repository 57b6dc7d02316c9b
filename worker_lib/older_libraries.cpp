// What our programs with LibTorch would take only from newer C and C++ libraries than LibTorch itself asks
// for, so that scripts/package gpu-check makes ones that run on every system with glibc 2.34 and GCC 11's
// libstdc++ (tests/packages/gpu_check.py). Hidden: libraries that a program loads use their own.
#include <pthread.h>

#include <condition_variable>
#include <mutex>

#if defined(__GLIBC__) && defined(__x86_64__)

#pragma GCC visibility push(hidden)
extern "C" {

// std::condition_variable::wait(std::unique_lock<std::mutex>&), since GCC 12 under a new version.
void ddprun_condition_wait(std::condition_variable* condition,
                           std::unique_lock<std::mutex>& lock) noexcept
    asm("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void ddprun_condition_wait(std::condition_variable* condition,
                           std::unique_lock<std::mutex>& lock) noexcept {
  ::pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
}
#pragma GCC visibility pop

#endif
