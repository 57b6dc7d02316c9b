// What the C++ runtime inside our program takes only from the newest C libraries, so that a program
// built here runs on every system with glibc 2.34 (tests/packages/portable.py). Linked only into
// programs, and hidden: libraries that a program loads still use their own.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cstdint>
#include <cstdlib>

#if defined(__GLIBC__) && defined(DLFO_STRUCT_HAS_EH_DBASE)

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

}  // namespace

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
}
#pragma GCC visibility pop

#endif
