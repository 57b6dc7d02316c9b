// A named thread with a small stack and every signal blocked, joined by its destructor: for code
// that runs beside the agent, which handles all signals itself. The owner must tell the body to
// end; the destructor only waits.
#pragma once

#include <pthread.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

class Thread {
 public:
  Thread() = default;
  // `name`: at most 15 characters, and a constant.
  static Result<Thread> start(const char* name, std::function<void()> body);

  Thread(Thread&& other) noexcept : id_(std::exchange(other.id_, std::nullopt)) {}
  Thread& operator=(Thread&& other) noexcept {
    join();
    id_ = std::exchange(other.id_, std::nullopt);
    return *this;
  }
  ~Thread() { join(); }

  void join();
  // Only for a body that uses nothing but what it owns.
  void detach();

 private:
  explicit Thread(pthread_t id) : id_(id) {}
  std::optional<pthread_t> id_;
};

// Destroys a value on a thread that nothing waits for, because its destructor may hang or take long: closing files, many
// connections. If no thread can be started, the caller destroys it.
template <typename T>
void destroy_on_thread(T value) {
  const auto shared = std::make_shared<T>(std::move(value));
  auto thread = Thread::start("ddprun-closer", [shared] { const T gone = std::move(*shared); });
  if (thread) thread->detach();
}

}  // namespace ddprun::rdzv
