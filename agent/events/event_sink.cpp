#include "agent/events/event_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

// O_RDWR, because opening a FIFO this way does not wait for a reader. When it is full it blocks the
// writer's thread, as every other file does.
Result<rdzv::UniqueFd> open_file(const std::string& path) {
  constexpr int kFlags = O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY;
  int fd = ::open(path.c_str(), O_RDWR | kFlags, 0644);
  if (fd < 0 && errno == EACCES) {
    // Write permission only: then a FIFO must have a reader already, and open() does not wait for
    // one.
    fd = ::open(path.c_str(), O_WRONLY | O_NONBLOCK | kFlags, 0644);
    if (fd >= 0) ::fcntl(fd, F_SETFL, O_APPEND);
  }
  if (fd < 0) return fail(error_from_errno(errno, "cannot open the event file " + path));
  return rdzv::UniqueFd(fd);
}

}  // namespace

EventSink::EventSink(boost::asio::any_io_executor executor, Console& console, OnLost on_lost)
    : console_(console),
      on_lost_(std::move(on_lost)),
      files_(std::move(executor), console, [] {}) {}

Result<std::unique_ptr<EventSink>> EventSink::open(boost::asio::any_io_executor executor,
                                                   Console& console, const EventSpec& spec,
                                                   OnLost on_lost) {
  auto sink = std::make_unique<EventSink>(std::move(executor), console, std::move(on_lost));
  if (!spec.file.empty()) {
    auto fd = open_file(spec.file);
    if (!fd) return fail(std::move(fd.error()));
    sink->file_ = sink->files_.adopt(fd->release(), spec.file);
    return sink;
  }
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    if (console.fd(stream) == *spec.descriptor) {
      sink->console_stream_ = stream;
      return sink;
    }
  }
  const std::string name = "the events' descriptor " + std::to_string(*spec.descriptor);
  const int fd = ::fcntl(*spec.descriptor, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return fail(error_from_errno(errno, "cannot use " + name));
  sink->file_ = sink->files_.adopt(fd, name);
  return sink;
}

void EventSink::write(std::string_view line) {
  // After a lost line the next line must be the one with their number, so drop all until then.
  const bool taken =
      lost_ == 0 && (console_stream_ ? console_.write(*console_stream_, line) : file_->write(line));
  if (taken || lost_++ > 0) return;
  auto ready = [this] { on_lost_(std::exchange(lost_, 0)); };
  console_stream_ ? console_.when_space(*console_stream_, std::move(ready))
                  : file_->when_space(std::move(ready));
}

void EventSink::when_written(std::function<void()> done) {
  console_stream_ ? console_.when_written(std::move(done)) : files_.when_written(std::move(done));
}

bool EventSink::flush(std::chrono::steady_clock::time_point deadline) {
  return console_stream_ ? console_.flush(deadline) : files_.flush(deadline);
}

}  // namespace ddprun::agent
