// Calls that may hang (a file server that does not answer, a process that is stuck in the kernel), one
// after the other on a thread of their own, so that the event loop never waits for them. The thread
// starts with the first call; where none can be had, the call is made at once.
//
// Owned by whoever wants the answers, event loop only. `done` gets what the call returned, on the
// event loop, never from within run(), and never once this object is gone. With a limit it gets
// nothing when the answer is not there in time; a later one is dropped, by the thread.
//
//   calls.run<std::string>([path] { return text_of(path); }, [this](std::string text) { … });
//
// The mistake to avoid: a call that refers to anything of its owner's. It may outlive it.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/common/thread.h"

namespace ddprun::agent {

class BlockingCalls {
 public:
  // `thread_name`: at most 15 characters, and a constant.
  BlockingCalls(boost::asio::any_io_executor executor, const char* thread_name);
  // Does not wait for a call that is under way.
  ~BlockingCalls();
  BlockingCalls(const BlockingCalls&) = delete;
  BlockingCalls& operator=(const BlockingCalls&) = delete;

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

  // For how long the call that is under way has not returned; nothing: none is.
  std::optional<std::chrono::steady_clock::duration> busy_for() const;

 private:
  struct Call;
  struct State;  // shared with the thread, which may outlive this object

  void start(std::function<void()> make, std::function<void(bool)> done,
             std::optional<std::chrono::milliseconds> limit);

  const char* const thread_name_;
  std::shared_ptr<State> state_;
  std::optional<rdzv::Thread> thread_;
};

}  // namespace ddprun::agent
