// Writes what the cores of this process are told to a file (--record), for `ddpctl replay`. Like the
// event file it holds up nothing: what a disk does not take in time is dropped, and said to be lost.
//
// Owned by the supervisor, event loop only; the Console outlives it. The mistake to avoid:
// feeding a core past it. What it was not told of cannot be played again.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "agent/events/core_record.h"
#include "agent/events/event_sink.h"
#include "agent/output/console.h"

namespace ddprun::agent {

class CoreRecorder {
 public:
  static Result<std::unique_ptr<CoreRecorder>> open(const boost::asio::any_io_executor& executor,
                                                    Console& console, const std::string& file);

  // In the order in which it happens; `decisions`: how many came of it.
  void note(Recorded what, std::size_t decisions = 0);

  // Waits, blocking, until all was written; false when the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline) { return sink_->flush(deadline); }

 private:
  CoreRecorder() = default;
  std::unique_ptr<EventSink> sink_;
};

}  // namespace ddprun::agent
