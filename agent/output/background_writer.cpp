#include "agent/output/background_writer.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cassert>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace ddprun::agent {
namespace {

constexpr std::size_t kSliceBytes = std::size_t{64} * 1024;
constexpr std::chrono::seconds kClosePatience{1};

// The bytes for one write(2): whole lines up to `limit`, or one longer line. Writes of up to
// PIPE_BUF to a pipe are atomic, so lines of a worker that inherited the same pipe cannot split
// ours.
std::string_view next_slice(std::string_view bytes, std::size_t limit) {
  if (bytes.size() <= limit) return bytes;
  std::size_t end = bytes.substr(0, limit).rfind('\n');
  if (end == std::string_view::npos) end = bytes.find('\n', limit);
  return end == std::string_view::npos ? bytes : bytes.substr(0, end + 1);
}

std::size_t slice_bytes_of(int fd) {
  struct stat status {};
  const bool is_pipe = ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode);
  return is_pipe ? PIPE_BUF : kSliceBytes;
}

// Returns 0 or errno; `bytes` is shortened by what was written.
int write_fully(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // somebody else made the shared description non-blocking
      pollfd ready{fd, POLLOUT, 0};
      if (::poll(&ready, 1, -1) < 0 && errno != EINTR) return errno;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// So that `stty tostop` still stops a background job that writes. The other signals stay blocked:
// instead of SIGPIPE this thread gets EPIPE.
void unblock_stop_by_terminal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTTOU);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace

struct BackgroundWriter::State : std::enable_shared_from_this<State> {
  struct Target {
    int fd = -1;
    bool open = false;         // between add() and close()
    bool in_use = false;       // until `closed` was called
    bool wants_space = false;  // a write() was refused since the last `space`
    bool failing = false;      // the last write to it failed
    std::size_t limit = 0;
    std::size_t slice = 0;  // set by the thread before the first write: even fstat() may hang
    std::string queued;
    std::size_t being_written = 0;
    std::uint64_t lost = 0;

    std::size_t pending() const { return queued.size() + being_written; }
  };

  State(boost::asio::any_io_executor the_executor, Events the_events)
      : executor(std::move(the_executor)), events(std::move(the_events)) {}

  // Posts only while the owner exists: later the executor may be gone. Handlers that were posted
  // before do nothing then. Needs the mutex.
  template <typename... Arguments>
  void announce(std::function<void(Arguments...)> Events::*handler,
                std::type_identity_t<Arguments>... arguments) {
    if (stopping || !(events.*handler)) return;
    post([this, handler, arguments...] { (events.*handler)(arguments...); });
  }

  void post(std::function<void()> call) {
    boost::asio::post(executor, [state = shared_from_this(), call = std::move(call)] {
      if (!state->is_stopping()) call();
    });
  }

  bool is_stopping() {
    const std::lock_guard lock(mutex);
    return stopping;
  }

  bool is_written() const {
    return std::ranges::all_of(targets, [](const Target& each) { return each.pending() == 0; });
  }
  void tell_if_written();
  void run();
  void write_queued(std::unique_lock<std::mutex>& lock, Sink sink, std::string& buffer);
  void release(std::unique_lock<std::mutex>& lock, Sink sink);
  void blocking(std::unique_lock<std::mutex>& lock, const std::function<void()>& call);

  boost::asio::any_io_executor executor;
  const Events events;
  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable progress;
  std::deque<Target> targets;  // a deque: references stay valid while the thread writes unlocked
  std::vector<std::function<void()>> when_written;
  bool stopping = false;
  bool ended = false;  // the thread has ended, after `stopping`
  // Set during a write or close, which may never return.
  std::optional<std::chrono::steady_clock::time_point> busy_since;
};

BackgroundWriter::BackgroundWriter(boost::asio::any_io_executor executor, Events events)
    : state_(std::make_shared<State>(std::move(executor), std::move(events))) {}

BackgroundWriter::~BackgroundWriter() {
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  if (!thread_) {
    for (Sink sink = 0; sink < state_->targets.size(); ++sink) state_->release(lock, sink);
    return;
  }
  state_->work.notify_one();
  const bool was_blocked = state_->busy_since.has_value();
  const bool has_ended = !was_blocked && state_->progress.wait_for(lock, kClosePatience, [this] {
    return state_->ended;
  });
  lock.unlock();
  if (!has_ended) thread_->detach();  // it releases what it holds when the write or close returns
}

BackgroundWriter::Sink BackgroundWriter::add(int fd, std::size_t limit_bytes) {
  const std::lock_guard lock(state_->mutex);
  auto& targets = state_->targets;
  const auto free = std::ranges::find(targets, false, &State::Target::in_use);
  const auto sink = static_cast<Sink>(free - targets.begin());
  auto& target = free == targets.end() ? targets.emplace_back() : *free;
  target.fd = fd;
  target.open = target.in_use = true;
  target.limit = limit_bytes;
  return sink;
}

bool BackgroundWriter::write(Sink sink, std::string_view bytes, std::size_t headroom_bytes) {
  std::unique_lock lock(state_->mutex);
  auto& target = state_->targets.at(sink);
  assert(target.open);
  const std::size_t pending = target.pending();
  if (pending > 0 && pending + bytes.size() > target.limit + headroom_bytes) {
    target.wants_space = true;
    return false;
  }
  target.queued.append(bytes);
  if (thread_) {
    state_->work.notify_one();
  } else if (auto thread =
                 rdzv::Thread::start("ddprun-writer", [state = state_] { state->run(); })) {
    thread_ = std::move(*thread);
  } else {
    // No thread can be started: write here, although this may block.
    std::string buffer;
    state_->write_queued(lock, sink, buffer);
  }
  return true;
}

void BackgroundWriter::close(Sink sink) {
  std::unique_lock lock(state_->mutex);
  auto& target = state_->targets.at(sink);
  assert(target.open);
  target.open = false;
  if (thread_) {
    state_->work.notify_one();
  } else {
    state_->release(lock, sink);
  }
}

std::optional<std::chrono::steady_clock::duration> BackgroundWriter::busy_for() const {
  const std::lock_guard lock(state_->mutex);
  if (!state_->busy_since) return std::nullopt;
  return std::chrono::steady_clock::now() - *state_->busy_since;
}

bool BackgroundWriter::flush(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(state_->mutex);
  return state_->progress.wait_until(lock, deadline, [this] { return state_->is_written(); });
}

void BackgroundWriter::when_written(std::function<void()> done) {
  const std::lock_guard lock(state_->mutex);
  state_->when_written.push_back(std::move(done));
  state_->tell_if_written();
}

// Needs the mutex.
void BackgroundWriter::State::tell_if_written() {
  if (stopping || when_written.empty() || !is_written()) return;
  for (auto& done : std::exchange(when_written, {})) post(std::move(done));
}

void BackgroundWriter::State::run() {
  unblock_stop_by_terminal();
  std::string buffer;  // swapped with a queue, so that bytes are copied once
  Sink last = 0;
  std::unique_lock lock(mutex);
  while (!stopping) {
    bool found = false;
    for (std::size_t step = 1; step <= targets.size() && !found; ++step) {
      const Sink sink = (last + step) % targets.size();  // in turn, so that no sink starves
      Target& target = targets[sink];
      if (!target.queued.empty()) {
        write_queued(lock, sink, buffer);
        last = sink;
        found = true;
      } else if (target.fd >= 0 && !target.open) {
        release(lock, sink);
        found = true;  // others may have queued work meanwhile: look again
      }
    }
    if (!found && !stopping) work.wait(lock);
  }
  // Detached or not, nobody uses the sinks after `stopping`.
  for (Sink sink = 0; sink < targets.size(); ++sink) release(lock, sink);
  ended = true;
  progress.notify_all();
}

// Calls that may hang run without the mutex, because the event loop takes it.
void BackgroundWriter::State::blocking(std::unique_lock<std::mutex>& lock,
                                       const std::function<void()>& call) {
  busy_since = std::chrono::steady_clock::now();
  lock.unlock();
  call();
  lock.lock();
  busy_since.reset();
}

void BackgroundWriter::State::write_queued(std::unique_lock<std::mutex>& lock, Sink sink,
                                           std::string& buffer) {
  Target& target = targets[sink];
  buffer.clear();
  buffer.swap(target.queued);
  std::string_view rest = buffer;
  target.being_written = rest.size();
  if (target.slice == 0) blocking(lock, [&] { target.slice = slice_bytes_of(target.fd); });
  while (!rest.empty() && !stopping) {
    target.being_written = rest.size();
    std::string_view slice = next_slice(rest, target.slice);
    const std::size_t slice_bytes = slice.size();
    int error = 0;
    blocking(lock, [&] { error = write_fully(target.fd, slice); });
    rest.remove_prefix(slice_bytes);
    target.being_written = rest.size();
    if (error != 0) {
      target.lost += slice.size();
      if (!std::exchange(target.failing, true)) announce(&Events::failed, sink, error);
    } else if (std::exchange(target.failing, false)) {
      announce(&Events::recovered, sink, std::exchange(target.lost, 0));
    }
    if (target.wants_space && target.pending() <= target.limit / 2) {
      target.wants_space = false;
      announce(&Events::space, sink);
    }
  }
  target.being_written = 0;
  progress.notify_all();
  tell_if_written();
}

void BackgroundWriter::State::release(std::unique_lock<std::mutex>& lock, Sink sink) {
  Target& target = targets[sink];
  if (target.fd < 0) return;
  const int fd = std::exchange(target.fd, -1);
  blocking(lock, [fd] { ::close(fd); });
  const std::uint64_t lost = target.lost;
  target = Target{};
  if (stopping) return;
  target.in_use = true;  // until `closed` was called
  post([this, sink, lost] {
    if (events.closed) events.closed(sink, lost);
    const std::lock_guard guard(mutex);
    targets[sink].in_use = false;
  });
}

}  // namespace ddprun::agent
