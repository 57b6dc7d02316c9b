#include "worker_lib/process/page_memory.h"

#include <dlfcn.h>
#include <unistd.h>

#include <new>

namespace ddprun {
namespace {

// Of the CUDA driver's API, by their names in the library; 0 is success.
using Register = int(void* memory, std::size_t size, unsigned flags);
using Unregister = int(void* memory);
constexpr unsigned kForAllContexts = 1;  // CU_MEMHOSTREGISTER_PORTABLE

std::unique_ptr<void, Unregister*> pin(const char* library, void* memory, std::size_t size) {
  void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // stays loaded, as with devices.cpp
  if (driver == nullptr) return {nullptr, nullptr};
  const auto add = reinterpret_cast<Register*>(dlsym(driver, "cuMemHostRegister_v2"));
  const auto remove = reinterpret_cast<Unregister*>(dlsym(driver, "cuMemHostUnregister"));
  const bool is_pinned =
      add != nullptr && remove != nullptr && add(memory, size, kForAllContexts) == 0;
  return {is_pinned ? memory : nullptr, remove};
}

}  // namespace

PageMemory::PageMemory(std::size_t size, bool is_pinned, const char* driver) {
  if (size == 0) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  memory_ = Mapping::of_this_process((size + page - 1) / page * page);
  if (!memory_) throw std::bad_alloc();
  if (is_pinned) pinned_ = pin(driver, memory_.data(), memory_.size());
}

}  // namespace ddprun
