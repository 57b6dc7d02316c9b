#include "worker_lib/group/freed_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace ddprun {
namespace {

constexpr int kKept = 256 << 20;
constexpr int kFromHeap = 32 << 20;  // the most that glibc takes
constexpr int kInHugePages = 192 << 20;
constexpr int kUsualPad = 128 << 10;  // glibc's

bool is_tuned() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
         std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
         (tunables != nullptr &&
          std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos);
}

#ifdef __GLIBC__
// The heap grows by addresses alone, and the kernel is asked for huge pages where they will be touched. In a thread
// with an arena of its own nothing happens.
void use_huge_pages() {
  const auto end_of_heap = [] { return reinterpret_cast<std::uintptr_t>(::sbrk(0)); };
  const std::uintptr_t begin = end_of_heap();
  ::mallopt(M_TOP_PAD, kInHugePages);
  void* volatile more_than_is_free = std::malloc(::mallinfo2().fordblks + 1);
  ::mallopt(M_TOP_PAD, kUsualPad);
  std::free(more_than_is_free);
  if (const std::uintptr_t end = end_of_heap(); end > begin) {
    ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // or pages as ever
  }
}
#endif

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  if (is_tuned()) return;
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kFromHeap);
  use_huge_pages();
#endif
}

}  // namespace ddprun
