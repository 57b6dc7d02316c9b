// A timer of the event loop. After arm() the callback is called once, but never after cancel(),
// another arm() or the destructor; it may destroy the timer. An Asio timer alone does not guarantee
// this: if its handler is queued, cancel() has no effect. So each arm() makes a token, and a handler
// whose token is gone does nothing. Event loop thread only.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <utility>

namespace ddprun {

class Timer {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Timer(const boost::asio::any_io_executor& executor) : timer_(executor) {}
  explicit Timer(boost::asio::io_context& io) : timer_(io) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

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
      if (ec || token.expired()) return;  // stale; this is decided only here
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
  std::shared_ptr<Token> token_;  // null: not armed
};

}  // namespace ddprun
