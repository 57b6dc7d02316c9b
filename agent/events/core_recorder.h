// Writes the inputs of this process's cores to a file (--record), for `ddpctl replay`. Like the
// event file it never blocks: if the disk is too slow, lines are dropped, and their number is
// recorded.
//
// Owned by the Supervisor, event loop only; the Console outlives it. Note every input of a core,
// because a replay without one of them makes other decisions.
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

  // Call it in the order of the inputs. `decisions`: how many followed.
  void note(Recorded what, std::size_t decisions = 0);

  // Blocks until everything was written; false: the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline) { return sink_->flush(deadline); }

 private:
  CoreRecorder() = default;
  std::unique_ptr<EventSink> sink_;
};

}  // namespace ddprun::agent
