// Calls a function that may block on a thread of its own, and hands its result to the event loop.
// The function must use nothing but what it owns: the thread may outlive the caller, and delays
// neither the loop nor the end of the process. Event loop thread only.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

template <typename T>
class BesideLoop final : public Attempt {
 public:
  // `name` as for Thread. `done` is called by the io_context, never from within the constructor; not
  // after this object is destroyed.
  BesideLoop(boost::asio::io_context& io, const char* name, std::function<Result<T>()> function,
             std::function<void(Result<T>)> done)
      : told_(io) {
    const auto call = std::make_shared<Call>();
    call->function = std::move(function);
    call->bell.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    UniqueFd ours(::fcntl(call->bell.get(), F_DUPFD_CLOEXEC, 0));
    boost::system::error_code ec;
    if (ours) told_.assign(ours.get(), ec);
    if (!ours || ec) {
      const Error error = error_from_errno(ours ? ec.value() : errno, "no thread can be told of");
      boost::asio::post(io,
                        lifetime_.guard([error, done = std::move(done)] { done(fail(error)); }));
      return;
    }
    static_cast<void>(ours.release());
    auto thread = Thread::start(name, [call] { call->run(); });
    if (thread) {
      thread->detach();
    } else {
      call->result = Result<T>(fail(thread.error()));
      ::eventfd_write(call->bell.get(), 1);
    }
    told_.async_wait(
        told_.wait_read,
        lifetime_.guard([this, call, done = std::move(done)](boost::system::error_code ignored) {
          told_.close(ignored);
          std::unique_lock lock(call->mutex);
          auto result = *std::move(call->result);
          lock.unlock();
          done(std::move(result));
        }));
  }

 private:
  // Shared by both sides.
  struct Call {
    std::function<Result<T>()> function;
    UniqueFd bell;
    std::mutex mutex;
    std::optional<Result<T>> result;

    void run() {
      auto made = function();
      const std::scoped_lock lock(mutex);
      result = std::move(made);
      ::eventfd_write(bell.get(), 1);
    }
  };

  boost::asio::posix::stream_descriptor told_;
  const Lifetime lifetime_;
};

}  // namespace ddprun::rdzv
