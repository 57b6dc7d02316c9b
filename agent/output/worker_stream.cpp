#include "agent/output/worker_stream.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} * 1024;
// Smaller, because with prefixes the text can be many times as large as the bytes read.
constexpr std::size_t kReadBytesOfLines = std::size_t{16} * 1024;
constexpr std::size_t kReadBytesAtEnd = std::size_t{1024} * 1024;
constexpr std::size_t kHeldBytesMax = std::size_t{64} * 1024;
// Enough for a program that writes a line in pieces (std::cerr does), and no visible delay of a
// prompt.
constexpr std::chrono::milliseconds kHold{10};

}  // namespace

WorkerStream::WorkerStream(boost::asio::any_io_executor executor, Console& console, int fd,
                           Destinations destinations,
                           std::function<void(const WorkerStream*)> on_done)
    : descriptor_(executor, fd),
      hold_timer_(executor),
      console_(console),
      destinations_(std::move(destinations)),
      on_done_(std::move(on_done)),
      tail_(destinations_.tail_lines) {}

// Does nothing if a wait is running already, or if earlier bytes must be delivered first: then
// retry() calls this again.
void WorkerStream::wait_readable() {
  if (is_at_end_ || is_blocked() || std::exchange(is_waiting_to_read_, true)) return;
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [weak = weak_from_this()](boost::system::error_code error) {
                           const auto self = weak.lock();
                           if (!self) return;
                           self->is_waiting_to_read_ = false;
                           if (error || self->is_at_end_) return;
                           if (!self->is_blocked()) self->read_some();
                           self->wait_readable();
                         });
}

std::size_t WorkerStream::read_some() {
  char buffer[kReadBytes];
  const std::size_t size = destinations_.prefix ? kReadBytesOfLines : kReadBytes;
  const ssize_t count = ::read(descriptor_.native_handle(), buffer, size);
  if (count > 0) {
    take({buffer, static_cast<std::size_t>(count)});
    return static_cast<std::size_t>(count);
  }
  // At the end read() returns 0 for a pipe, and fails with EIO for a pseudo-terminal.
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) close();
  return 0;
}

std::size_t WorkerStream::bytes_there() {
  int count = 0;
  ::ioctl(descriptor_.native_handle(), FIONREAD, &count);
  return static_cast<std::size_t>(count);
}

void WorkerStream::end() {
  if (is_at_end_) return;
  // Bounded, because a process that left the group may go on writing for ever.
  std::size_t limit = std::max(kReadBytesAtEnd, bytes_there());
  while (limit > 0) {
    const std::size_t count = read_some();
    if (count == 0) break;
    limit -= std::min(limit, count);
  }
  close();
}

void WorkerStream::close() {
  if (std::exchange(is_at_end_, true)) return;
  descriptor_.close();
  if (destinations_.prefix) {
    splitter_.finish([this](std::string_view line) { add_line(line); });
    deliver_lines();
  } else {
    release_held();
  }
  lines_ = std::string();
  filtered_lines_ = std::string();
  check_done();
}

void WorkerStream::take(std::string_view bytes) {
  tail_.append(bytes);
  if (destinations_.file) deliver(kFile, bytes);
  if (!destinations_.console) return;
  if (!destinations_.prefix) return take_raw(bytes);
  splitter_.feed(bytes, [this](std::string_view line) { add_line(line); });
  deliver_lines();
}

void WorkerStream::add_line(std::string_view line) {
  const std::size_t begin = lines_.size();
  lines_.append(*destinations_.prefix).append(line).append(1, '\n');
  const bool matches = std::ranges::any_of(destinations_.filters, [&](const auto& part) {
    return line.find(part) != std::string_view::npos;
  });
  if (matches && destinations_.filtered_file) filtered_lines_.append(lines_, begin);
}

void WorkerStream::deliver_lines() {
  if (!filtered_lines_.empty()) deliver(kFilteredFile, filtered_lines_);
  if (!lines_.empty()) to_console(lines_);
  filtered_lines_.clear();
  lines_.clear();
}

// Passes on whole lines at once, and an unfinished line (a prompt, a progress bar) if nothing
// follows within kHold, so that lines which two workers write in pieces do not mix.
void WorkerStream::take_raw(std::string_view bytes) {
  const std::size_t last_end = bytes.find_last_of("\r\n");
  const std::size_t whole = last_end == std::string_view::npos ? 0 : last_end + 1;
  if (whole > 0 && held_.empty()) {
    to_console(bytes.substr(0, whole));
  } else if (whole > 0) {
    to_console(std::exchange(held_, {}).append(bytes.substr(0, whole)));
  }
  held_.append(bytes.substr(whole));
  if (held_.size() > kHeldBytesMax) release_held();
  hold();
}

void WorkerStream::hold() {
  if (held_.empty() || is_at_end_) return;
  hold_timer_.arm(kHold, [this] {
    // Not if there is more to read, which may finish the line: reading it calls hold() again.
    if (!is_at_end_ && !is_blocked() && bytes_there() == 0) release_held();
  });
}

void WorkerStream::release_held() {
  hold_timer_.cancel();
  if (!held_.empty()) to_console(std::exchange(held_, {}));
}

void WorkerStream::to_console(std::string_view text) {
  if (!destinations_.file) return deliver(kConsole, text);
  if (dropped_lines_ > 0) {
    const std::string notice = destinations_.prefix.value_or("") + "(" +
                               std::to_string(dropped_lines_) +
                               " lines not shown: the console is too slow; they are in " +
                               destinations_.file->path() + ")\n";
    if (offer(kConsole, notice)) dropped_lines_ = 0;
  }
  if (!text.empty() && (dropped_lines_ > 0 || !offer(kConsole, text))) {
    dropped_lines_ += static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
  }
  if (dropped_lines_ > 0 && !std::exchange(is_waiting_to_tell_, true)) when_space(kConsole);
}

void WorkerStream::deliver(Target target, std::string_view bytes) {
  std::string& undelivered = undelivered_[target];
  if (undelivered.empty()) {
    if (offer(target, bytes)) return;
    when_space(target);
  }
  undelivered.append(bytes);
}

bool WorkerStream::offer(Target target, std::string_view bytes) {
  if (target == kConsole) return console_.write(destinations_.stream, bytes);
  return file(target).write(bytes);
}

void WorkerStream::when_space(Target target) {
  auto ready = [weak = weak_from_this(), target] {
    if (const auto self = weak.lock()) self->retry(target);
  };
  if (target == kConsole) {
    console_.when_space(destinations_.stream, std::move(ready));
  } else {
    file(target).when_space(std::move(ready));
  }
}

void WorkerStream::retry(Target target) {
  if (target == kConsole && destinations_.file) {
    is_waiting_to_tell_ = false;
    to_console({});  // prints the number of dropped lines
  } else if (offer(target, undelivered_[target])) {
    undelivered_[target] = std::string();
    wait_readable();
    hold();
  } else {
    when_space(target);
  }
  if (is_at_end_) check_done();
}

bool WorkerStream::is_blocked() const {
  return !std::ranges::all_of(undelivered_, [](const auto& each) { return each.empty(); });
}

void WorkerStream::check_done() {
  if (is_blocked() || dropped_lines_ > 0 || !on_done_) return;
  destinations_.file.reset();
  destinations_.filtered_file.reset();
  std::exchange(on_done_, nullptr)(this);
}

}  // namespace ddprun::agent
