// Writes the inputs of this process's cores to a file (--record), for `ddpctl replay`; never
// blocks: if the disk is too slow, lines are dropped, and their number is recorded. Note every
// input, because a replay without one makes other decisions. Owned by the Supervisor, event loop
// only; the Console outlives it.
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
                                                    Console& console, const std::string& file) {
    auto recorder = std::make_unique<CoreRecorder>();
    EventSpec spec;
    spec.file = file;
    auto sink = EventSink::open(
        executor, console, spec,
        [raw = recorder.get()](std::uint64_t lines) { raw->note(InputsLost{lines}); });
    if (!sink) return fail(std::move(sink.error()));
    recorder->sink_ = std::move(*sink);
    return recorder;
  }

  // Call it in the order of the inputs. `decisions`: how many followed.
  void note(Recorded what, std::size_t decisions = 0) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    sink_->write(record_line({std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                              std::move(what), decisions}));
  }

  bool flush(std::chrono::steady_clock::time_point deadline) { return sink_->flush(deadline); }

 private:
  std::unique_ptr<EventSink> sink_;
};

}  // namespace ddprun::agent
