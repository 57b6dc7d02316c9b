// What the shells of the round protocol stand on: time, timers, and byte streams between hosts. The
// shipped one is Asio's (asio_transport.h); tests/sim runs the same shells over a virtual one.
// Everything happens on one thread, that of whoever runs the transport's loop.
//
// What is owned is enough: a timer, an attempt or an acceptor that is destroyed calls nothing any
// more, and so does a timer that was cancelled or armed again, even where it was already due.
// Nothing is ever called back from within a call made here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rdzv {

class Timer {
 public:
  virtual ~Timer() = default;
  // Calls `what` once, when that time has come; replaces what it was armed for.
  virtual void at(CoreTime when, std::function<void()> what) = 0;
  virtual void cancel() = 0;
};

// One connection, either end. Held by a shared_ptr, and by its transport until it has ended.
class Stream {
 public:
  struct Events {
    std::function<void(std::string_view)> on_bytes;  // some, however they were sent
    std::function<void(const Error&)> on_end;        // once; nothing comes after it
  };

  virtual ~Stream() = default;
  // From now on. Called again: whoever takes over. Nothing is called after close().
  virtual void start(Events events) = 0;
  // What the other side leaves unread beyond a bound ends the connection.
  virtual void send(std::string_view bytes) = 0;
  // Says that nothing more comes; the other side's end is still waited for.
  virtual void finish_sending() = 0;
  virtual void close() = 0;
  // The socket, for another owner; closed for this one.
  virtual UniqueFd release() = 0;

  // What the other side has left unread, beyond what the kernel holds for it, in bytes.
  virtual std::size_t unsent() const = 0;
  virtual bool is_open() const = 0;
  // Numeric; empty when it has ended.
  virtual std::string local_address() = 0;
  virtual std::string peer_address() = 0;
};
using StreamPtr = std::shared_ptr<Stream>;

// Something under way (a connection, a name look-up), which ends when this is destroyed.
class Attempt {
 public:
  virtual ~Attempt() = default;
};

class Acceptor {
 public:
  struct Events {
    std::function<void(StreamPtr)> on_stream;  // to be started by its new owner
    // No descriptor is left for the next connection. True: one was freed, it is tried again at once.
    std::function<bool()> on_shortage;
  };
  virtual ~Acceptor() = default;
};

class Transport {
 public:
  using Connected = std::function<void(Result<StreamPtr>)>;
  using LookedUp = std::function<void(Result<std::vector<std::string>>)>;

  virtual ~Transport() = default;

  // Since the transport was made.
  virtual CoreTime now() const = 0;
  virtual std::unique_ptr<Timer> make_timer() = 0;
  // In a later turn of the loop, in the order of the calls.
  virtual void post(std::function<void()> what) = 0;

  // To a numeric address. kUnavailable: nobody listens there; no time limit of its own.
  virtual std::unique_ptr<Attempt> connect(const Endpoint& numeric, Connected done) = 0;
  // Numeric addresses, the preferred first; never an empty list.
  virtual std::unique_ptr<Attempt> look_up(const std::string& host, LookedUp done) = 0;
  virtual std::unique_ptr<Acceptor> accept(Listener listener, Acceptor::Events events) = 0;
};

}  // namespace ddprun::rdzv
