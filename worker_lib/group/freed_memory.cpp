#include "worker_lib/group/freed_memory.h"

#include <malloc.h>

#include <cstdlib>
#include <string_view>

namespace ddprun {
namespace {

constexpr int kKept = 256 << 20;
constexpr int kFromHeap = 32 << 20;  // the most that glibc takes

bool is_tuned() {
  const char* const tunables = std::getenv("GLIBC_TUNABLES");
  return std::getenv("MALLOC_TRIM_THRESHOLD_") != nullptr ||
         std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr ||
         (tunables != nullptr &&
          std::string_view(tunables).find("glibc.malloc.") != std::string_view::npos);
}

}  // namespace

void keep_freed_memory() {
#ifdef __GLIBC__
  if (is_tuned()) return;
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kFromHeap);
#endif
}

}  // namespace ddprun
