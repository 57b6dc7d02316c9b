// Where the lines of --events go: a file, a FIFO or an inherited descriptor. Written behind the
// scenes (LogFiles, or the Console where the descriptor is its own), so that neither a full disk
// nor a reader that has stopped reading ever holds up the event loop. What does not fit into the
// bounded queue is dropped, and `lost` is told how many lines that were as soon as there is room.
//
// Owned by EventLog, event loop only; the Console outlives it. Whoever cares for the last lines
// calls flush() before the end.
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
  EventSink(const EventSink&) = delete;
  EventSink& operator=(const EventSink&) = delete;

  void write(std::string_view line);

  // Calls `done` once, on the event loop, when all was written or lost.
  void when_written(std::function<void()> done);
  // Waits, blocking, until all was written; false when the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

 private:
  void when_space();

  Console& console_;
  const OnLost on_lost_;
  LogFiles files_;
  std::shared_ptr<LogFile> file_;         // this one, or
  std::optional<Stream> console_stream_;  // this one
  std::uint64_t lost_ = 0;
};

}  // namespace ddprun::agent
