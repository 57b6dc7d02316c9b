#include "worker_lib/c10d/gloo_interrupt.h"

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

// clang-format off
#define DDPRUN_TCP "_ZN4gloo9transport3tcp"
// gloo::transport::tcp::UnboundBuffer: UnboundBuffer(const std::shared_ptr<Context>&, void* data, size_t size),
// ~UnboundBuffer(), void signalException(std::exception_ptr)
#define DDPRUN_MAKE_BUFFER DDPRUN_TCP "13UnboundBufferC1ERKSt10shared_ptrINS1_7ContextEEPvm"
#define DDPRUN_END_BUFFER DDPRUN_TCP "13UnboundBufferD1Ev"
#define DDPRUN_FAIL_BUFFER DDPRUN_TCP "13UnboundBuffer15signalExceptionENSt15__exception_ptr13exception_ptrE"
// gloo::transport::tcp::Pair: Pair(Context*, Device*, int rank, std::chrono::milliseconds timeout, bool), ~Pair(),
// std::exception_ptr signalExceptionExternal(const std::string&),
// void connectCallback(std::shared_ptr<Socket>, const Error&)
#define DDPRUN_MAKE_PAIR DDPRUN_TCP "4PairC1EPNS1_7ContextEPNS1_6DeviceEiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEEb"
#define DDPRUN_END_PAIR DDPRUN_TCP "4PairD1Ev"
#define DDPRUN_FAIL_PAIR \
  DDPRUN_TCP "4Pair23signalExceptionExternalERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define DDPRUN_CONNECTED_PAIR DDPRUN_TCP "4Pair15connectCallbackESt10shared_ptrINS1_6SocketEERKNS1_5ErrorE"
// void signalException(std::exception_ptr)
#define DDPRUN_FAILED_PAIR DDPRUN_TCP "4Pair15signalExceptionENSt15__exception_ptr13exception_ptrE"
// clang-format on

namespace ddprun::detail {
namespace {

struct Buffers {
  std::mutex mutex;  // none ends while it is held
  std::unordered_set<void*> all;
};

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
void fail(void* pair, const std::string& why) { fail_pair()(pair, why); }

// Gloo's thread connects a pair, in a callback. One that is failed before is closed, and must not be connected
// afterwards: the first event of a connection that has failed would end the process. Nor does Gloo know that a pair
// whose making was given up is gone. So a callback that comes too late is left out, and the end of a pair waits for
// its callback.
class Pairs {
 public:
  void add(void* pair) {
    const std::scoped_lock lock(states_mutex_);
    states_[pair] = {};
    ended_.erase(pair);
  }
  void remove(void* pair) {
    const std::scoped_lock lives(lives_);
    std::unique_lock lock(states_mutex_);
    is_free_.wait(lock, [&] { return !states_[pair].is_taking_over; });
    states_.erase(pair);
    ended_.insert(pair);
  }
  // Side by side: each waits until Gloo's thread has looked for events once more, which it does every 10 ms.
  void fail_all(const std::string& why) {
    const std::scoped_lock lives(lives_);
    std::vector<std::jthread> others;
    for (void* const pair : note_failure(why)) {
      try {
        others.emplace_back([pair, &why] { fail(pair, why); });
      } catch (const std::system_error&) {  // no more threads
        fail(pair, why);
      }
    }
  }
  // Pairs that were never noted are left to Gloo.
  template <typename Connect>
  void connected(void* pair, const Connect& connect) {
    std::unique_lock lock(states_mutex_);
    if (ended_.contains(pair)) return;
    const auto found = states_.find(pair);
    if (found == states_.end()) {
      lock.unlock();
      return connect();
    }
    State& state = found->second;  // stays: remove() waits
    if (state.is_failed) return;
    state.is_taking_over = true;
    lock.unlock();
    connect();
    lock.lock();
    if (state.is_failed) {
      const std::string why = why_;
      lock.unlock();
      fail(pair, why);
      lock.lock();
    }
    state.is_taking_over = false;
    lock.unlock();
    is_free_.notify_all();
  }

 private:
  struct State {
    bool is_failed = false;
    bool is_taking_over = false;  // its callback runs, which also fails it if that is to be
  };

  // Those that the caller is to fail.
  std::vector<void*> note_failure(const std::string& why) {
    const std::scoped_lock lock(states_mutex_);
    why_ = why;
    std::vector<void*> of_caller;
    for (auto& [pair, state] : states_) {
      if (std::exchange(state.is_failed, true)) continue;
      if (!state.is_taking_over) of_caller.push_back(pair);
    }
    return of_caller;
  }

  // No pair ends while it is held. Whoever fails a pair waits for Gloo's thread, so callbacks do not take this one.
  std::mutex lives_;
  std::mutex states_mutex_;  // guards the rest, and is never held while Gloo is called
  std::condition_variable is_free_;
  std::unordered_map<void*, State> states_;
  std::unordered_set<void*> ended_;  // their places in memory, until others are there
  std::string why_;
};

// Never destroyed: threads of Gloo may outlive main().
Pairs& pairs() {
  static auto* const made = new Pairs;
  return *made;
}
Buffers& buffers() {
  static auto* const made = new Buffers;
  return *made;
}
std::uint64_t buffers_made = 0;  // std::atomic_ref
std::uint64_t pairs_failed = 0;  // likewise

}  // namespace

void interrupt_gloo(const std::string& why) {
  if (fail_pair() == nullptr || fail_buffer() == nullptr) return;
  pairs().fail_all(why);
  // Those that are made from here on belong to pairs that have failed, and say so.
  const auto failure = std::make_exception_ptr(std::runtime_error(why));
  const std::scoped_lock lock(buffers().mutex);
  for (void* const buffer : buffers().all) fail_buffer()(buffer, failure);
}

const std::uint64_t* gloo_calls() { return &buffers_made; }
const std::uint64_t* gloo_failures() { return &pairs_failed; }

}  // namespace ddprun::detail

// What LibTorch's calls and its virtual tables lead to.
using namespace ddprun::detail;

extern "C" {
extern const bool ddprun_ends_gloo_calls;
const bool ddprun_ends_gloo_calls = true;  // the linker asks for it
}

extern "C" {
#define DDPRUN_SEEN __attribute__((visibility("default")))
DDPRUN_SEEN void ddprun_make_gloo_buffer(void* self, const void* context, void* data,
                                         std::size_t size) asm(DDPRUN_MAKE_BUFFER);
DDPRUN_SEEN void ddprun_end_gloo_buffer(void* self) asm(DDPRUN_END_BUFFER);
DDPRUN_SEEN void ddprun_make_gloo_pair(void* self, void* context, void* device, int rank,
                                       std::chrono::milliseconds timeout,
                                       bool flag) asm(DDPRUN_MAKE_PAIR);
DDPRUN_SEEN void ddprun_end_gloo_pair(void* self) asm(DDPRUN_END_PAIR);
// An argument with a destructor is passed by its address. Gloo has a pointer to this member, in which an odd address
// means a virtual function: so it must be even, also where the compiler saves space.
DDPRUN_SEEN __attribute__((aligned(16))) void ddprun_connected_gloo_pair(
    void* self, void* socket, const void* error) asm(DDPRUN_CONNECTED_PAIR);
DDPRUN_SEEN void ddprun_failed_gloo_pair(void* self, void* exception) asm(DDPRUN_FAILED_PAIR);

void ddprun_make_gloo_buffer(void* self, const void* context, void* data, std::size_t size) {
  static auto* const next =
      of_libtorch<void(void*, const void*, void*, std::size_t)>(DDPRUN_MAKE_BUFFER);
  next(self, context, data, size);
  const std::scoped_lock lock(buffers().mutex);
  buffers().all.insert(self);
  std::atomic_ref(buffers_made).fetch_add(1, std::memory_order_relaxed);
}

void ddprun_end_gloo_buffer(void* self) {
  static auto* const next = of_libtorch<void(void*)>(DDPRUN_END_BUFFER);
  {
    const std::scoped_lock lock(buffers().mutex);
    buffers().all.erase(self);
  }
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

void ddprun_connected_gloo_pair(void* self, void* socket, const void* error) {
  static auto* const next = of_libtorch<void(void*, void*, const void*)>(DDPRUN_CONNECTED_PAIR);
  pairs().connected(self, [&] { next(self, socket, error); });
}

void ddprun_failed_gloo_pair(void* self, void* exception) {
  static auto* const next = of_libtorch<void(void*, void*)>(DDPRUN_FAILED_PAIR);
  std::atomic_ref(pairs_failed).fetch_add(1, std::memory_order_relaxed);
  next(self, exception);
}
}

bool ddprun::detail::can_interrupt_gloo() {
  const auto is_ours = [](const char* symbol, auto* own) {
    return ::dlsym(RTLD_DEFAULT, symbol) == reinterpret_cast<void*>(own);
  };
  return fail_pair() != nullptr && fail_buffer() != nullptr &&
         of_libtorch<void()>(DDPRUN_MAKE_PAIR) != nullptr &&
         of_libtorch<void()>(DDPRUN_MAKE_BUFFER) != nullptr &&
         of_libtorch<void()>(DDPRUN_FAILED_PAIR) != nullptr &&
         is_ours(DDPRUN_MAKE_PAIR, &ddprun_make_gloo_pair) &&
         is_ours(DDPRUN_MAKE_BUFFER, &ddprun_make_gloo_buffer);
}
