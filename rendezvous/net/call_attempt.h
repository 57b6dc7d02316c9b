// A call that may block as an Attempt: made on a thread of its own, because BlockingCalls makes those of one object one after
// the other. The function must use nothing but what it owns: the thread may outlive the caller, and delays neither the loop nor
// the end of the process. Event loop thread only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <utility>

#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/result.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

template <typename T>
class CallAttempt final : public Attempt {
 public:
  // `thread_name` as for BlockingCalls. `done` is called by the io_context, never from within the constructor; not after this
  // object is destroyed.
  CallAttempt(boost::asio::io_context& io, const char* thread_name,
              std::function<Result<T>()> function, std::function<void(Result<T>)> done)
      : work_(io.get_executor()), calls_(io.get_executor(), thread_name) {
    calls_.run<Result<T>>(std::move(function), [this, done = std::move(done)](Result<T> result) {
      work_.reset();
      done(std::move(result));  // may destroy this object
    });
  }

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  BlockingCalls calls_;
};

}  // namespace ddprun::rdzv
