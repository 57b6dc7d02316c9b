// A named thread with a small stack and every signal blocked, joined by its destructor: for the
// shells that run beside the agent, whose signals are the agent's own to handle. The body must end
// by itself when its owner tells it to; the destructor only waits.
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
  // For a body that touches nothing but what it owns.
  void detach();

 private:
  explicit Thread(pthread_t id) : id_(id) {}
  std::optional<pthread_t> id_;
};

}  // namespace ddprun::rdzv
