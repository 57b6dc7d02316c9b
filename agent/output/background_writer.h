// Writes what others queue to descriptors that may block (a terminal that was stopped, a pipe
// nobody reads, a slow disk), on a thread of its own, so that the event loop never waits for them.
// The thread starts with the first byte; where there can be none (a limit), write() itself writes.
// Descriptors stay in blocking mode: their open file descriptions are shared with the shell and the
// workers, who would meet O_NONBLOCK too.
//
// Owned by Console (one for each console stream) and by Output (one for all log files). Any thread
// may call; events come back posted to the executor, so a handler runs on the event loop. The
// mistake to avoid: taking `false` of write() for a loss. Nothing of those bytes was taken; offer
// them again after `space`.
//
// A write that fails does not stop anything: what could not be written is counted, `failed` says so
// once, and when writing works again `recovered` says how many bytes are missing.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

namespace ddprun::agent {

class BackgroundWriter {
 public:
  using Sink = std::size_t;

  struct Events {
    std::function<void(Sink)> space;  // after a refused write(): half of the queue is free again
    std::function<void(Sink, int errno_value)> failed;
    std::function<void(Sink, std::uint64_t lost_bytes)> recovered;
    // After close(): everything was written or lost, and the number of the sink may be used again.
    std::function<void(Sink, std::uint64_t lost_bytes)> closed;
  };

  BackgroundWriter(boost::asio::any_io_executor executor, Events events);
  // Does not wait for a write or close that blocks: its thread is left to end when that returns.
  // Whoever cares for the queued bytes calls flush() before.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  // Takes `fd`; it is closed after close(), by the thread where there is one, so that the thread
  // never meets a number that was given to another file. `limit_bytes` bounds what is queued and
  // being written.
  Sink add(int fd, std::size_t limit_bytes);

  // Takes all of `bytes` or nothing: false when they would pass the limit (a single piece larger
  // than the limit is taken when nothing else is queued, so that it can be written at all). Bytes
  // of one call stay together. `headroom_bytes` is added to the limit, for those who cannot wait.
  bool write(Sink sink, std::string_view bytes, std::size_t headroom_bytes = 0);

  // No more bytes for this sink; those queued are still written.
  void close(Sink sink);

  // Calls `done` once, on the event loop, when every queue is empty: what was written before is on
  // its way, or lost and said to be.
  void when_written(std::function<void()> done);
  // Waits until then, blocking; false when the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

  // For how long the write or close that is under way has not returned; nothing: none is.
  std::optional<std::chrono::steady_clock::duration> busy_for() const;

 private:
  struct State;

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive this object
  std::thread thread_;
};

}  // namespace ddprun::agent
