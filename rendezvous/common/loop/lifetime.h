// For handlers that must not run after their owner is destroyed: a handler that is already queued
// in an event loop cannot be cancelled any more. Held by the owner; one thread.
//
//   timer_.async_wait(lifetime_.guard([this](const error_code& ec) { … }));
#pragma once

#include <memory>
#include <utility>

namespace ddprun {

class Lifetime {
 public:
  Lifetime() = default;
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  // The same handler, which does nothing after this object is destroyed.
  template <typename Handler>
  auto guard(Handler handler) const {
    return
        [token = std::weak_ptr(token_), handler = std::move(handler)](auto&&... arguments) mutable {
          if (!token.expired()) handler(std::forward<decltype(arguments)>(arguments)...);
        };
  }

  // Expires with this object: for a function that calls something which may destroy it.
  std::weak_ptr<const void> watch() const { return token_; }

 private:
  struct Token {};
  const std::shared_ptr<Token> token_ = std::make_shared<Token>();
};

}  // namespace ddprun
