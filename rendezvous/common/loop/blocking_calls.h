// Runs calls that may hang (a file server that does not answer, a process that hangs in the kernel)
// one after the other on a thread, which the first call starts; if none can be started, run() makes
// the call itself.
//
// Event loop only. `done` gets the result on the event loop, never from within run(), and never
// after this object is destroyed. With a limit, `done` gets no value if the call does not return in
// time. `call` may run longer than its owner lives: let it refer to nothing of it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/common/thread.h"

namespace ddprun {

class BlockingCalls {
 public:
  // `thread_name`: at most 15 characters, and a constant.
  BlockingCalls(boost::asio::any_io_executor executor, const char* thread_name);
  // Does not wait for a call that is running.
  ~BlockingCalls();

  template <typename T>
  void run(std::function<T()> call, std::function<void(T)> done) {
    const auto answer = std::make_shared<std::optional<T>>();
    start([answer, call = std::move(call)] { *answer = call(); },
          [answer, done = std::move(done)](bool) { done(std::move(**answer)); }, std::nullopt);
  }

  template <typename T>
  void run(std::chrono::milliseconds limit, std::function<T()> call,
           std::function<void(std::optional<T>)> done) {
    const auto answer = std::make_shared<std::optional<T>>();
    start([answer, call = std::move(call)] { *answer = call(); },
          [answer, done = std::move(done)](bool is_there) {
            done(is_there ? std::move(*answer) : std::nullopt);
          },
          limit);
  }

  // How long the current call has been running; none: no call is running.
  std::optional<std::chrono::steady_clock::duration> busy_for() const;

 private:
  struct Call;
  struct State;  // shared with the thread, which may live longer than this object

  void start(std::function<void()> make, std::function<void(bool)> done,
             std::optional<std::chrono::milliseconds> limit);

  const char* const thread_name_;
  std::shared_ptr<State> state_;
  std::optional<rdzv::Thread> thread_;
};

}  // namespace ddprun
