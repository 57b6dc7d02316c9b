// What the shells of the round protocol need from the system: time, timers, and byte streams
// between hosts. The production implementation uses Asio (asio_transport.h); tests/sim runs the
// same shells over a virtual one. Everything happens on the thread that runs the transport's loop.
//
// After a timer or an attempt is destroyed, its callback never runs. The same holds
// for a timer that was cancelled or armed again, even if it was already due. No callback runs from
// within a call of these members.
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

class TransportTimer {
 public:
  virtual ~TransportTimer() = default;
  // Calls `what` once, at that time; replaces an earlier setting.
  virtual void at(CoreTime when, std::function<void()> what) = 0;
  virtual void cancel() = 0;
};

// One end of a connection. Held by a shared_ptr, and by its transport until it has ended.
class Stream {
 public:
  struct Events {
    std::function<void(std::string_view)> on_bytes;  // in pieces of any size
    std::function<void(const Error&)> on_end;        // once; the last event
  };

  virtual ~Stream() = default;
  // Begins to deliver events. A second call replaces the receiver. No event comes after close().
  virtual void start(Events events) = 0;
  // The connection ends if the other side leaves more unread than a bound.
  virtual void send(std::string_view bytes) = 0;
  // Closes the sending direction; the other side's end is still awaited.
  virtual void finish_sending() = 0;
  virtual void close() = 0;
  // Gives the socket to another owner; this stream is then closed.
  virtual UniqueFd release() = 0;

  // Bytes that the other side has left unread, beyond what the kernel buffers.
  virtual std::size_t unsent() const = 0;
  virtual bool is_open() const = 0;
  // Numeric; empty when it has ended.
  virtual std::string local_address() = 0;
  virtual std::string peer_address() = 0;
};
using StreamPtr = std::shared_ptr<Stream>;

// An operation in progress (a connection, a name lookup, accepting); destroying this cancels it.
class Attempt {
 public:
  virtual ~Attempt() = default;
};

struct AcceptEvents {
  std::function<void(StreamPtr)> on_stream;  // its new owner must start it
  // No descriptor is left for the next connection. Return true if one was freed: accepting is
  // tried again at once.
  std::function<bool()> on_shortage;
};

class Transport {
 public:
  using Connected = std::function<void(Result<StreamPtr>)>;
  using LookedUp = std::function<void(Result<std::vector<std::string>>)>;
  using Called = std::function<void(Result<std::string>)>;

  virtual ~Transport() = default;

  // The time since the transport was created.
  virtual CoreTime now() const = 0;
  virtual std::unique_ptr<TransportTimer> make_timer() = 0;
  // Calls `what` in a later turn of the loop, in the order of the calls.
  virtual void post(std::function<void()> what) = 0;

  // Connects to a numeric address. kUnavailable: nobody listens there. It has no time limit of its
  // own.
  virtual std::unique_ptr<Attempt> connect(const Endpoint& numeric, Connected done) = 0;
  // Gives numeric addresses, the preferred one first, never an empty list.
  virtual std::unique_ptr<Attempt> look_up(const std::string& host, LookedUp done) = 0;
  // Calls a function that may block beside the loop; it must use nothing but what it owns.
  virtual std::unique_ptr<Attempt> call(std::function<Result<std::string>()> function,
                                        Called done) = 0;
  virtual std::unique_ptr<Attempt> accept(Listener listener, AcceptEvents events) = 0;
};

}  // namespace ddprun::rdzv
