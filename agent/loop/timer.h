// One timer of an event loop: arm(), and the callback comes once; cancel(), another arm() or the end
// of this object, and it never comes.
//
// An Asio timer alone does not promise that. When it has expired, and the loop holds its handler
// ready behind others, cancel() comes too late: the handler is called without an error. So each
// arming has a token of its own here, and a handler whose token is gone does nothing. Callbacks may
// therefore capture the owner of the timer, and a callback may destroy the timer that calls it.
//
// Owned by whoever waits; event loop thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <utility>

namespace ddprun::agent {

class Timer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timer(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  explicit Timer(boost::asio::io_context& io) : timer_(io) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Each replaces what was armed before.
  template <typename Callback>
  void arm(Clock::duration after, Callback callback) {
    arm_at(Clock::now() + after, std::move(callback));
  }
  template <typename Callback>
  void arm_at(Clock::time_point when, Callback callback) {
    token_ = std::make_shared<Token>();
    timer_.expires_at(when);
    timer_.async_wait([this, token = std::weak_ptr(token_), callback = std::move(callback)](
                          const boost::system::error_code& ec) mutable {
      if (ec || token.expired()) return;  // stale: the only place where that is decided
      token_.reset();
      callback();  // may destroy this object
    });
  }

  void cancel() {
    token_.reset();
    timer_.cancel();
  }

  bool is_armed() const { return token_ != nullptr; }

 private:
  struct Token {};

  boost::asio::steady_timer timer_;
  std::shared_ptr<Token> token_;  // of what is armed; gone with this object
};

}  // namespace ddprun::agent
