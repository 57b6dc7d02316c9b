#include "worker_lib/process/page_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace ddprun {
namespace {

// Of the CUDA driver's API, by their names in the library; 0 is success.
using Register = int(void* memory, std::size_t size, unsigned flags);
using Unregister = int(void* memory);
constexpr unsigned kForAllContexts = 1;  // CU_MEMHOSTREGISTER_PORTABLE

Unregister* pin(const char* library, void* memory, std::size_t size) {
  void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // stays loaded, as with devices.cpp
  if (driver == nullptr) return nullptr;
  const auto add = reinterpret_cast<Register*>(dlsym(driver, "cuMemHostRegister_v2"));
  const auto remove = reinterpret_cast<Unregister*>(dlsym(driver, "cuMemHostUnregister"));
  const bool is_pinned =
      add != nullptr && remove != nullptr && add(memory, size, kForAllContexts) == 0;
  return is_pinned ? remove : nullptr;
}

}  // namespace

PageMemory::PageMemory(std::size_t size, bool is_pinned, const char* driver) {
  if (size == 0) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  size_ = (size + page - 1) / page * page;
  void* const memory =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(memory);
  if (is_pinned) unregister_ = pin(driver, data_, size_);
}

PageMemory::PageMemory(PageMemory&& other) noexcept { *this = std::move(other); }

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(unregister_, other.unregister_);
  return *this;
}

PageMemory::~PageMemory() {
  if (unregister_ != nullptr) unregister_(data_);
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace ddprun
