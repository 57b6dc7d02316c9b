#include "worker_lib/group/freed_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace ddprun {
namespace {

constexpr int kKept = 256 << 20;
constexpr int kFromHeap = 32 << 20;  // the most that glibc takes
constexpr int kInHugePages = 192 << 20;
constexpr int kUsualPad = 128 << 10;  // glibc's
constexpr int kUsualMmaps = 65536;    // likewise

bool is_tuned() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  for (const char* const name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_",
                                 "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return tunables != nullptr &&
         std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos;
}

#ifdef __GLIBC__
bool is_limited(decltype(RLIMIT_AS) what) {
  rlimit limit{};
  return ::getrlimit(what, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

// The heap grows by addresses alone, and the kernel is asked for huge pages where they will be touched. In a thread
// with an arena of its own nothing happens.
void use_huge_pages() {
  // Addresses count there.
  if (is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA)) return;
  const auto end_of_heap = [] { return reinterpret_cast<std::uintptr_t>(::sbrk(0)); };
  const std::uintptr_t begin = end_of_heap();
  ::mallopt(M_TOP_PAD, kInHugePages);
  ::mallopt(M_MMAP_MAX, 0);  // from the heap, however much is free in the middle of it
  void* volatile more_than_is_free = std::malloc(::mallinfo2().fordblks + 1);
  std::free(more_than_is_free);
  ::mallopt(M_MMAP_MAX, kUsualMmaps);
  ::mallopt(M_TOP_PAD, kUsualPad);
  if (const std::uintptr_t end = end_of_heap(); end > begin) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // or pages as ever
  }
}
#endif

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  static bool is_done = false;
  if (std::exchange(is_done, true) || is_tuned()) return;
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kFromHeap);
  use_huge_pages();
#endif
}

}  // namespace ddprun
