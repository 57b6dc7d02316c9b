// For handlers that must not run after their owner is destroyed: a handler that is already queued
// in an event loop cannot be cancelled any more. Held by the owner; one thread.
//
//   timer_.async_wait(lifetime_.guard([this](const error_code& ec) { … }));
#pragma once

#include <memory>
#include <utility>

namespace ddprun::rdzv {

class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  // The same handler, which does nothing after this object is destroyed or renewed.
  template <typename Handler>
  auto guard(Handler handler) const {
    return
        [token = std::weak_ptr(token_), handler = std::move(handler)](auto&&... arguments) mutable {
          if (!token.expired()) handler(std::forward<decltype(arguments)>(arguments)...);
        };
  }

  // Handlers that were guarded before never run.
  void renew() { token_ = std::make_shared<Token>(); }

 private:
  struct Token {};
  std::shared_ptr<Token> token_ = std::make_shared<Token>();
};

}  // namespace ddprun::rdzv
