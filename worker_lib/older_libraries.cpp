// What our programs and libraries with LibTorch would take only from newer C++ libraries than LibTorch itself asks for, which
// is GCC 8's: ddprun.torch runs wherever PyTorch does (tests/packages/portable.py), and so do the programs that scripts/package
// gpu-check makes (tests/packages/gpu_check.py), with glibc 2.34. Hidden: libraries that a program loads use their own.
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

// std::stringbuf::str() const&, since GCC 11 under a name of its own for C++20; before it str() const.
asm(".pushsection .text.ddprun_older_str,\"ax\",%progbits\n"
    ".hidden _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv\n"
    ".globl _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv\n"
    ".type _ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv,%function\n"
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv:\n"
    "jmp *_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv@GOTPCREL(%rip)\n"
    ".popsection");
#pragma GCC visibility pop

#endif
