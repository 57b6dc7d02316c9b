// Where the lines of --events and --record go: a file, a FIFO or an inherited descriptor. A thread
// writes them. Lines that do not fit into the bounded queue are dropped, and `on_lost` gets their
// number as soon as there is space. Owned by EventLog and by CoreRecorder, event loop only; the
// Console outlives it. Without when_written() or flush() at the end the last lines may be lost.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "agent/job.h"
#include "agent/output/console.h"
#include "agent/output/log_files.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

class EventSink {
 public:
  using OnLost = std::function<void(std::uint64_t lines)>;

  static Result<std::unique_ptr<EventSink>> open(boost::asio::any_io_executor executor,
                                                 Console& console, const EventSpec& spec,
                                                 OnLost on_lost);
  EventSink(boost::asio::any_io_executor executor, Console& console, OnLost on_lost);

  void write(std::string_view line);

  // Calls `done` once, on the event loop, when all was written or lost.
  void when_written(std::function<void()> done);
  // Blocks until everything was written; false: the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

 private:
  Console& console_;
  const OnLost on_lost_;
  LogFiles files_;
  // One of these two is set.
  std::shared_ptr<LogFile> file_;
  std::optional<Stream> console_stream_;
  std::uint64_t lost_ = 0;
};

}  // namespace ddprun::agent
