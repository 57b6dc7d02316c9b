// Writes queued bytes to descriptors that may block (a stopped terminal, a pipe that nobody reads,
// a slow disk) on a thread, which the first byte starts; if none can be started, write() itself
// writes. Descriptors stay in blocking mode: shell and workers share their open file descriptions.
//
// Owned by Console (one for each console stream) and by LogFiles (one for all files). Any thread
// may call; events are posted to the executor. A write error stops nothing: the lost bytes are
// counted, `failed` is called once, and `recovered` gets their number when writing works again.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "rendezvous/common/thread.h"

namespace ddprun::agent {

class BackgroundWriter {
 public:
  using Sink = std::size_t;

  struct Events {
    std::function<void(Sink)> space;  // after a refused write(): half of the queue is free again
    std::function<void(Sink, int errno_value)> failed;
    std::function<void(Sink, std::uint64_t lost_bytes)> recovered;
    // After close(): everything was written or lost, and the sink's number may be reused.
    std::function<void(Sink, std::uint64_t lost_bytes)> closed;
  };

  BackgroundWriter(boost::asio::any_io_executor executor, Events events);
  // Does not wait for a write or close that blocks. Queued bytes are lost: call flush() before.
  ~BackgroundWriter();

  // Takes `fd`, which the thread closes after close(), so that it never uses the number of another
  // file. `limit_bytes` bounds what is queued and being written.
  Sink add(int fd, std::size_t limit_bytes);

  // Takes all of `bytes` or, if they would exceed the limit, nothing (false). A single piece larger
  // than the limit is taken if nothing else is queued. Bytes of one call stay together.
  // `headroom_bytes` is added to the limit, for callers that cannot wait.
  bool write(Sink sink, std::string_view bytes, std::size_t headroom_bytes = 0);

  // No more bytes for this sink; those queued are still written.
  void close(Sink sink);

  // Calls `done` once, on the event loop, when every queue is empty: earlier bytes were written, or
  // reported as lost.
  void when_written(std::function<void()> done);
  // Blocks until then; false: the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

  // How long the current write or close has been running; none: none is running.
  std::optional<std::chrono::steady_clock::duration> busy_for() const;

 private:
  struct State;

  std::shared_ptr<State> state_;  // shared with the thread, which may live longer
  std::optional<rdzv::Thread> thread_;
};

}  // namespace ddprun::agent
