#include "worker_lib/c10d/gloo_buffers.h"

#include <dlfcn.h>

#include <cstddef>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

#define DDPRUN_UNBOUND_BUFFER "_ZN4gloo9transport3tcp13UnboundBuffer"
#define DDPRUN_CONSTRUCTOR DDPRUN_UNBOUND_BUFFER "C1ERKSt10shared_ptrINS1_7ContextEEPvm"
#define DDPRUN_DESTRUCTOR DDPRUN_UNBOUND_BUFFER "D1Ev"
#define DDPRUN_SIGNAL DDPRUN_UNBOUND_BUFFER "15signalExceptionENSt15__exception_ptr13exception_ptrE"

namespace ddprun::detail {
namespace {

struct Buffers {
  std::mutex mutex;
  std::unordered_set<void*> all;
};
// Never destroyed: threads of Gloo may outlive main().
Buffers& buffers() {
  static auto* const made = new Buffers;
  return *made;
}

// A program that was linked with LibTorch has it next; one that loads it later, as Python does, keeps it to itself.
template <typename Function>
Function* of_libtorch(const char* symbol) {
  void* found = ::dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) {
    void* const library = ::dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);  // never closed
    if (library != nullptr) found = ::dlsym(library, symbol);
  }
  return reinterpret_cast<Function*>(found);
}

// void UnboundBuffer::signalException(std::exception_ptr)
auto* signal_function() {
  static auto* const found = of_libtorch<void(void*, std::exception_ptr)>(DDPRUN_SIGNAL);
  return found;
}

}  // namespace

void fail_gloo_buffers(const std::string& why) {
  auto* const signal = signal_function();
  if (signal == nullptr) return;
  const auto failure = std::make_exception_ptr(std::runtime_error(why));
  const std::scoped_lock lock(buffers().mutex);
  for (void* const buffer : buffers().all) signal(buffer, failure);
}

}  // namespace ddprun::detail

// What LibTorch's calls and its virtual table of UnboundBuffer lead to.
using namespace ddprun::detail;

// UnboundBuffer(const std::shared_ptr<Context>&, void* data, size_t size)
extern "C" __attribute__((visibility("default"))) void ddprun_make_gloo_buffer(
    void* self, const void* context, void* data, std::size_t size) asm(DDPRUN_CONSTRUCTOR);
extern "C" void ddprun_make_gloo_buffer(void* self, const void* context, void* data,
                                        std::size_t size) {
  static auto* const next =
      of_libtorch<void(void*, const void*, void*, std::size_t)>(DDPRUN_CONSTRUCTOR);
  next(self, context, data, size);
  const std::scoped_lock lock(buffers().mutex);
  buffers().all.insert(self);
}

extern "C" __attribute__((visibility("default"))) void ddprun_end_gloo_buffer(void* self) asm(
    DDPRUN_DESTRUCTOR);
extern "C" void ddprun_end_gloo_buffer(void* self) {
  static auto* const next = of_libtorch<void(void*)>(DDPRUN_DESTRUCTOR);
  {
    const std::scoped_lock lock(buffers().mutex);
    buffers().all.erase(self);
  }
  next(self);
}

bool ddprun::detail::are_gloo_buffers_known() {
  return signal_function() != nullptr && ::dlsym(RTLD_DEFAULT, DDPRUN_CONSTRUCTOR) ==
                                             reinterpret_cast<void*>(&ddprun_make_gloo_buffer);
}
