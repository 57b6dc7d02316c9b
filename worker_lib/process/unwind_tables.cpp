#include "worker_lib/process/unwind_tables.h"

#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <span>

namespace ddprun {
namespace {

// The kernel cuts what is asked for at once to what it reads at once, of which this is the usual smallest.
constexpr std::uintptr_t kAtOnce = 128 << 10;

int read_ahead(dl_phdr_info* object, std::size_t /*size*/, void* /*unused*/) {
  const std::span headers(object->dlpi_phdr, object->dlpi_phnum);
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const auto& table : headers) {
    if (table.p_type != PT_GNU_EH_FRAME) continue;
    for (const auto& segment : headers) {
      const auto end = segment.p_vaddr + segment.p_filesz;
      if (segment.p_type != PT_LOAD || table.p_vaddr < segment.p_vaddr || table.p_vaddr >= end)
        continue;
      const std::uintptr_t begin = (object->dlpi_addr + table.p_vaddr) / page * page;
      for (auto at = begin; at < object->dlpi_addr + end; at += kAtOnce) {
        ::madvise(reinterpret_cast<void*>(at), std::min(kAtOnce, object->dlpi_addr + end - at),
                  MADV_WILLNEED);
      }
    }
  }
  return 0;
}

}  // namespace

void read_unwind_tables_ahead() noexcept { ::dl_iterate_phdr(read_ahead, nullptr); }

}  // namespace ddprun
