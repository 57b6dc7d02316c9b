#include "worker_lib/process/unwind_tables.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

struct Pages {
  std::string of;  // a library's path
  char* begin = nullptr;
  std::size_t size = 0;
};

// From the table's first page to the end of its segment, of that library.
Pages unwind_tables(const std::string& library) {
  Pages found{.of = library};
  const auto find = [](dl_phdr_info* object, std::size_t /*size*/, void* wanted) {
    auto& pages = *static_cast<Pages*>(wanted);
    if (pages.of != object->dlpi_name) return 0;
    const std::span headers(object->dlpi_phdr, object->dlpi_phnum);
    const auto table =
        std::ranges::find(headers, PT_GNU_EH_FRAME, [](const auto& each) { return each.p_type; });
    for (const auto& each : headers) {
      if (each.p_type != PT_LOAD || table->p_vaddr < each.p_vaddr ||
          table->p_vaddr >= each.p_vaddr + each.p_filesz)
        continue;
      const std::uintptr_t first = (object->dlpi_addr + table->p_vaddr) & ~std::uintptr_t{4095};
      pages.begin = reinterpret_cast<char*>(first);
      pages.size = object->dlpi_addr + each.p_vaddr + each.p_filesz - first;
    }
    return 1;
  };
  ::dl_iterate_phdr(find, &found);
  return found;
}

std::size_t not_in_memory(const Pages& pages) {
  std::vector<unsigned char> is_resident((pages.size + 4095) / 4096);
  EXPECT_EQ(::mincore(pages.begin, pages.size, is_resident.data()), 0);
  return static_cast<std::size_t>(
      std::ranges::count_if(is_resident, [](unsigned char each) { return (each & 1) == 0; }));
}

long waits_for_the_disk() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_majflt;
}

// A copy of the C++ library, of which nothing is in memory.
TEST(UnwindTables, AreReadBeforeAnExceptionNeedsThem) {
  const test::TempFolder folder;
  const std::string copy = folder.file("library.so");
  Dl_info original{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&std::terminate), &original), 0);
  std::filesystem::copy_file(original.dli_fname, copy);
  const rdzv::UniqueFd file(::open(copy.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(file.get()), 0);
  ASSERT_NE(::dlopen(copy.c_str(), RTLD_LAZY | RTLD_LOCAL),
            nullptr);  // stays: others may have taken symbols from it
  ASSERT_EQ(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
  const Pages tables = unwind_tables(copy);
  ASSERT_GT(tables.size, std::size_t{256} << 10);  // more than the kernel reads at once
  if (not_in_memory(tables) < tables.size / 4096 / 2)
    GTEST_SKIP() << "this file system keeps files in memory";

  read_unwind_tables_ahead();

  const long before = waits_for_the_disk();
  for (std::size_t at = 0; at < tables.size; at += 4096) {
    static_cast<void>(*static_cast<volatile char*>(tables.begin + at));
  }
  EXPECT_EQ(waits_for_the_disk(), before);
}

}  // namespace
}  // namespace ddprun
