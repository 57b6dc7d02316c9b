#include "agent/events/core_recorder.h"

#include <utility>

namespace ddprun::agent {

Result<std::unique_ptr<CoreRecorder>> CoreRecorder::open(
    const boost::asio::any_io_executor& executor, Console& console, const std::string& file) {
  std::unique_ptr<CoreRecorder> recorder(new CoreRecorder());
  EventSpec spec;
  spec.file = file;
  auto sink = EventSink::open(executor, console, spec, [raw = recorder.get()](std::uint64_t lines) {
    raw->note(InputsLost{lines});
  });
  if (!sink) return fail(std::move(sink.error()));
  recorder->sink_ = std::move(*sink);
  return recorder;
}

void CoreRecorder::note(Recorded what, std::size_t decisions) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  sink_->write(record_line({std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                            std::move(what), decisions}));
}

}  // namespace ddprun::agent
