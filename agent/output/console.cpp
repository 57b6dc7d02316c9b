#include "agent/output/console.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

constexpr BackgroundWriter::Sink kOnlySink = 0;
constexpr const char* kEraseRow = "\r\x1b[K";

bool same_file(int a, int b) {
  struct stat first {};
  struct stat second {};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

Console::Console(boost::asio::any_io_executor executor, Options options)
    : fds_{options.stdout_fd, options.stderr_fd},
      is_terminal_{::isatty(options.stdout_fd) == 1, ::isatty(options.stderr_fd) == 1},
      is_one_file_(same_file(options.stdout_fd, options.stderr_fd)),
      look_(options.look) {
  for (std::size_t queue = 0; queue < (is_one_file_ ? 1U : 2U); ++queue) {
    const std::string name = is_one_file_ ? "stdout and stderr" : queue == 0 ? "stdout" : "stderr";
    BackgroundWriter::Events events;
    // A caller that finds the queue full again is queued behind those that were not served yet.
    events.space = [this, queue](auto) {
      for (const auto& call : std::exchange(waiting_[queue], {})) call();
    };
    events.failed = [this, queue, name](auto, int error) {
      failed_[queue] = true;
      notify("cannot write to " + name + " any more (" + std::strerror(error) +
             "); the job goes on without it");
    };
    events.recovered = [this, queue, name](auto, std::uint64_t lost_bytes) {
      failed_[queue] = false;
      notify(name + " can be written again; " + std::to_string(lost_bytes) + " bytes were lost");
    };
    writers_[queue] = std::make_unique<BackgroundWriter>(executor, std::move(events));
    writers_[queue]->add(::fcntl(fds_[queue], F_DUPFD_CLOEXEC, 3), options.queue_bytes);
  }
}

bool Console::write(Stream stream, std::string_view bytes, std::size_t headroom_bytes) {
  const std::size_t queue = queue_of(stream);
  if (!can_have_live_line(stream) || bytes.empty()) {
    return writers_[queue]->write(kOnlySink, bytes, headroom_bytes);
  }
  const std::lock_guard lock(last_row_mutex_);
  LastRow& row = last_row_[queue];
  const std::string erasing = row.has_live_line ? kEraseRow + std::string(bytes) : "";
  const bool is_taken =
      writers_[queue]->write(kOnlySink, row.has_live_line ? erasing : bytes, headroom_bytes);
  if (is_taken) row = {.is_empty = bytes.back() == '\n', .has_live_line = false};
  return is_taken;
}

void Console::set_live_line(Stream stream, std::string_view text) {
  if (!can_have_live_line(stream)) return;
  const std::lock_guard lock(last_row_mutex_);
  const std::size_t queue = queue_of(stream);
  LastRow& row = last_row_[queue];
  if (!row.is_empty || (text.empty() && !row.has_live_line)) return;
  const bool is_taken = writers_[queue]->write(kOnlySink, kEraseRow + std::string(text));
  if (is_taken) row.has_live_line = !text.empty();
}

void Console::notify(std::string_view sentence) {
  if (notice_handler_) return notice_handler_(sentence);
  const Stream stream = failed_[queue_of(Stream::kStderr)] ? Stream::kStdout : Stream::kStderr;
  say(stream, "ddprun: " + printable(sentence) + "\n");
}

// Each stream twice: the message that one cannot be written is queued on the other.
void Console::await_written(std::size_t turn, std::function<void()> done) {
  if (turn == 2 * writers_.size()) return done();
  const auto& writer = writers_[turn % writers_.size()];
  auto next = [this, turn, done = std::move(done)] { await_written(turn + 1, done); };
  writer ? writer->when_written(std::move(next)) : next();
}

bool Console::flush(std::chrono::steady_clock::time_point deadline) {
  bool complete = true;
  for (const auto& writer : writers_) {
    if (writer) complete = writer->flush(deadline) && complete;
  }
  return complete;
}

}  // namespace ddprun::agent
