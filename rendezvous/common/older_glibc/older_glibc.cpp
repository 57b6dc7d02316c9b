// What our programs, and our libraries that a program of Python loads, take of the C library, so that what is built here runs
// on every system with glibc 2.28, as PyTorch's wheels do (tests/packages/portable.py). Linked into each of them, and hidden:
// what else is in the process uses its own.
//
// Most of it are calls that glibc 2.34 has moved from libpthread and libdl into libc, under a new version: here each is a jump
// to the one with the version before, which every glibc has. The others are defined here.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#if defined(__GLIBC__) && defined(DLFO_STRUCT_HAS_EH_DBASE) && \
    (defined(__x86_64__) || defined(__aarch64__))

#if defined(__x86_64__)
#define DDPRUN_VERSION(x86, arm) x86
#define DDPRUN_JUMP(to) "jmp *" to "@GOTPCREL(%rip)"
#else
#define DDPRUN_VERSION(x86, arm) arm
#define DDPRUN_JUMP(to) "b " to
#endif
// `name` is a jump to `older` of that version, in a section of its own, so that a linker leaves out what is not called.
#define DDPRUN_JUMPS(name, older, x86) \
  asm(".symver ddprun_older_" name "," older "@" DDPRUN_VERSION(x86, "GLIBC_2.17") "\n" \
      ".pushsection .text.ddprun_older_" name ",\"ax\",%progbits\n"                     \
      ".globl " name "\n.hidden " name "\n.type " name ",%function\n" name ":\n"       \
      DDPRUN_JUMP("ddprun_older_" name) "\n"                                            \
      ".size " name ",.-" name "\n.popsection")
#define DDPRUN_OLDER(name, x86) DDPRUN_JUMPS(name, name, x86)

DDPRUN_OLDER("__pthread_key_create", "GLIBC_2.2.5");
DDPRUN_OLDER("dladdr", "GLIBC_2.2.5");
DDPRUN_OLDER("dlclose", "GLIBC_2.2.5");
DDPRUN_OLDER("dlerror", "GLIBC_2.2.5");
DDPRUN_OLDER("dlopen", "GLIBC_2.2.5");
DDPRUN_OLDER("dlsym", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_attr_setstacksize", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_condattr_setclock", "GLIBC_2.3.3");
DDPRUN_OLDER("pthread_create", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_detach", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_getspecific", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_join", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_key_create", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_key_delete", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_mutexattr_destroy", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_mutexattr_init", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_mutexattr_setpshared", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_mutexattr_setrobust", "GLIBC_2.12");
DDPRUN_OLDER("pthread_once", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_rwlock_destroy", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_rwlock_init", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_rwlock_rdlock", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_rwlock_unlock", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_rwlock_wrlock", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_setname_np", "GLIBC_2.12");
DDPRUN_OLDER("pthread_setspecific", "GLIBC_2.2.5");
DDPRUN_OLDER("pthread_sigmask", "GLIBC_2.2.5");

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* result;
};

int look_at(dl_phdr_info* object, std::size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  const auto at = [object](const ElfW(Phdr) & segment) {
    return object->dlpi_addr + segment.p_vaddr;
  };
  bool is_inside = false;
  std::uintptr_t frame_header = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD && search.address - at(segment) < segment.p_memsz) {
      is_inside = true;
      search.result->dlfo_map_start = reinterpret_cast<void*>(at(segment));
      search.result->dlfo_map_end = reinterpret_cast<void*>(at(segment) + segment.p_memsz);
    }
    if (segment.p_type == PT_GNU_EH_FRAME) frame_header = at(segment);
  }
  if (!is_inside) return 0;
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(frame_header);
  return frame_header != 0 ? 1 : -1;
}

using ClockWait = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);

timespec operator+(timespec time, std::int64_t nanoseconds) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  const std::int64_t all = time.tv_nsec + nanoseconds;
  time.tv_sec += all / kSecond;
  time.tv_nsec = all % kSecond;
  return time;
}

std::int64_t left_until(clockid_t clock, const timespec& deadline) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec now{};
  ::clock_gettime(clock, &now);
  return (deadline.tv_sec - now.tv_sec) * kSecond + deadline.tv_nsec - now.tv_nsec;
}

}  // namespace

using Main = int (*)(int, char**, char**);
using Nothing = void (*)();

extern "C" {
int __fxstat(int, int, struct stat*) noexcept;
int __fxstatat(int, int, const char*, struct stat*, int) noexcept;
[[noreturn]] int ddprun_older_libc_start_main(Main main, int argc, char** argv, Main init,
                                              Nothing fini, Nothing loader_fini, void* stack_end);
}

#pragma GCC visibility push(hidden)
extern "C" {

// glibc 2.35, asked by the unwinder of GCC 12 whenever an exception is thrown.
int _dl_find_object(void* address, dl_find_object* result) noexcept {
  *result = {};
  Search search{reinterpret_cast<std::uintptr_t>(address), result};
  return dl_iterate_phdr(look_at, &search) == 1 ? 0 : -1;
}

// glibc 2.36, the source of std::random_device.
std::uint32_t arc4random() noexcept {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) std::abort();
  return number;
}

// glibc 2.34; the caller knows what to do without.
int close_range(unsigned first, unsigned last, int flags) noexcept {
  return static_cast<int>(::syscall(SYS_close_range, first, last, flags));
}

// glibc 2.32: libstdc++ asks it whether it may do without atomic operations. It may not.
char __libc_single_threaded = 0;

// glibc 2.30. Before it libstdc++ awaited a time of the monotonic clock by the other one, too: callers look again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  static const auto newer =
      reinterpret_cast<ClockWait>(::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (newer != nullptr) return newer(condition, mutex, clock, deadline);
  timespec until{};
  ::clock_gettime(CLOCK_REALTIME, &until);
  until = until + std::max<std::int64_t>(0, left_until(clock, *deadline));
  const int code = ::pthread_cond_timedwait(condition, mutex, &until);
  return code == ETIMEDOUT && left_until(clock, *deadline) > 0 ? 0 : code;
}

// glibc 2.33; before it these were made of calls that say which layout of `stat` is meant.
constexpr int kStatVersion = DDPRUN_VERSION(1, 0);

int fstatat(int folder, const char* path, struct stat* status, int flags) noexcept {
  return __fxstatat(kStatVersion, folder, path, status, flags);
}
int stat(const char* path, struct stat* status) noexcept {
  return fstatat(AT_FDCWD, path, status, 0);
}
int lstat(const char* path, struct stat* status) noexcept {
  return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}
int fstat(int file, struct stat* status) noexcept { return __fxstat(kStatVersion, file, status); }
static_assert(sizeof(struct stat) == sizeof(struct stat64));
int fstat64(int file, struct stat64* status) noexcept {
  return fstat(file, reinterpret_cast<struct stat*>(status));
}

// Before glibc 2.34 a program ran its own initializers, by a function that its start file named: the start file of a newer one
// names none, and leaves them to the C library.
asm(".symver ddprun_older_libc_start_main,__libc_start_main@" DDPRUN_VERSION("GLIBC_2.2.5",
                                                                             "GLIBC_2.17"));
// By the linker.
extern const Main __preinit_array_start[];
extern const Main __preinit_array_end[];
extern const Main __init_array_start[];
extern const Main __init_array_end[];
void _init();
}

namespace {
int initialize(int argc, char** argv, char** environment) {
  for (const auto* each = __preinit_array_start; each != __preinit_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
  _init();
  for (const auto* each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(argc, argv, environment);
  }
  return 0;
}
}  // namespace

extern "C" [[noreturn]] int __libc_start_main(Main main, int argc, char** argv, Main, Nothing,
                                              Nothing loader_fini, void* stack_end) {
  ddprun_older_libc_start_main(main, argc, argv, &initialize, nullptr, loader_fini, stack_end);
}
#pragma GCC visibility pop

#endif
