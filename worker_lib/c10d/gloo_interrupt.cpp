#include "worker_lib/c10d/gloo_interrupt.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <unordered_set>

// clang-format off
#define DDPRUN_TCP "_ZN4gloo9transport3tcp"
// gloo::transport::tcp::UnboundBuffer: UnboundBuffer(const std::shared_ptr<Context>&, void* data, size_t size),
// ~UnboundBuffer(), void signalException(std::exception_ptr)
#define DDPRUN_MAKE_BUFFER DDPRUN_TCP "13UnboundBufferC1ERKSt10shared_ptrINS1_7ContextEEPvm"
#define DDPRUN_END_BUFFER DDPRUN_TCP "13UnboundBufferD1Ev"
#define DDPRUN_FAIL_BUFFER DDPRUN_TCP "13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_ptrE"
// gloo::transport::tcp::Pair: Pair(Context*, Device*, int rank, std::chrono::milliseconds timeout, bool), ~Pair(),
// std::exception_ptr signalExceptionExternal(const std::string&)
#define DDPRUN_MAKE_PAIR DDPRUN_TCP "4PairC1EPNS1_7ContextEPNS1_6DeviceEiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEb"
#define DDPRUN_END_PAIR DDPRUN_TCP "4PairD1Ev"
#define DDPRUN_FAIL_PAIR \
  DDPRUN_TCP "4Pair23signalExceptionExternalERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
// clang-format on

namespace ddprun::detail {
namespace {

class Objects {
 public:
  void add(void* object) {
    const std::scoped_lock lock(mutex_);
    all_.insert(object);
  }
  void remove(void* object) {
    const std::scoped_lock lock(mutex_);
    all_.erase(object);
  }
  // None ends meanwhile.
  template <typename Function>
  void for_each(const Function& f) {
    const std::scoped_lock lock(mutex_);
    for (void* const object : all_) f(object);
  }

 private:
  std::mutex mutex_;
  std::unordered_set<void*> all_;
};
// Never destroyed: threads of Gloo may outlive main().
Objects& pairs() {
  static auto* const made = new Objects;
  return *made;
}
Objects& buffers() {
  static auto* const made = new Objects;
  return *made;
}
std::uint64_t buffers_made = 0;  // std::atomic_ref

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

// By the ABI of C++, in which `this` is the first argument.
auto* fail_buffer() {
  static auto* const found = of_libtorch<void(void*, std::exception_ptr)>(DDPRUN_FAIL_BUFFER);
  return found;
}
auto* fail_pair() {
  static auto* const found =
      of_libtorch<std::exception_ptr(void*, const std::string&)>(DDPRUN_FAIL_PAIR);
  return found;
}

}  // namespace

void interrupt_gloo(const std::string& why) {
  if (fail_pair() == nullptr || fail_buffer() == nullptr) return;
  pairs().for_each([&](void* pair) { fail_pair()(pair, why); });
  // Those that are made from here on belong to pairs that have failed, and say so.
  const auto failure = std::make_exception_ptr(std::runtime_error(why));
  buffers().for_each([&](void* buffer) { fail_buffer()(buffer, failure); });
}

const std::uint64_t* gloo_calls() { return &buffers_made; }

}  // namespace ddprun::detail

// What LibTorch's calls and its virtual tables lead to.
using namespace ddprun::detail;

extern "C" {
#define DDPRUN_SEEN __attribute__((visibility("default")))
DDPRUN_SEEN void ddprun_make_gloo_buffer(void* self, const void* context, void* data,
                                         std::size_t size) asm(DDPRUN_MAKE_BUFFER);
DDPRUN_SEEN void ddprun_end_gloo_buffer(void* self) asm(DDPRUN_END_BUFFER);
DDPRUN_SEEN void ddprun_make_gloo_pair(void* self, void* context, void* device, int rank,
                                       std::chrono::milliseconds timeout,
                                       bool flag) asm(DDPRUN_MAKE_PAIR);
DDPRUN_SEEN void ddprun_end_gloo_pair(void* self) asm(DDPRUN_END_PAIR);

void ddprun_make_gloo_buffer(void* self, const void* context, void* data, std::size_t size) {
  static auto* const next =
      of_libtorch<void(void*, const void*, void*, std::size_t)>(DDPRUN_MAKE_BUFFER);
  next(self, context, data, size);
  buffers().add(self);
  std::atomic_ref(buffers_made).fetch_add(1, std::memory_order_relaxed);
}

void ddprun_end_gloo_buffer(void* self) {
  static auto* const next = of_libtorch<void(void*)>(DDPRUN_END_BUFFER);
  buffers().remove(self);
  next(self);
}

void ddprun_make_gloo_pair(void* self, void* context, void* device, int rank,
                           std::chrono::milliseconds timeout, bool flag) {
  static auto* const next =
      of_libtorch<void(void*, void*, void*, int, std::chrono::milliseconds, bool)>(
          DDPRUN_MAKE_PAIR);
  next(self, context, device, rank, timeout, flag);
  pairs().add(self);
}

void ddprun_end_gloo_pair(void* self) {
  static auto* const next = of_libtorch<void(void*)>(DDPRUN_END_PAIR);
  pairs().remove(self);
  next(self);
}
}

bool ddprun::detail::can_interrupt_gloo() {
  const auto is_ours = [](const char* symbol, auto* own) {
    return ::dlsym(RTLD_DEFAULT, symbol) == reinterpret_cast<void*>(own);
  };
  return fail_pair() != nullptr && fail_buffer() != nullptr &&
         of_libtorch<void()>(DDPRUN_MAKE_PAIR) != nullptr &&
         of_libtorch<void()>(DDPRUN_MAKE_BUFFER) != nullptr &&
         is_ours(DDPRUN_MAKE_PAIR, &ddprun_make_gloo_pair) &&
         is_ours(DDPRUN_MAKE_BUFFER, &ddprun_make_gloo_buffer);
}
