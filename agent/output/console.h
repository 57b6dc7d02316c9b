// The agent's own stdout and stderr. All that the agent itself prints goes through here (workers'
// lines, the log, the failure report), so that nothing comes between the bytes of one call, and a
// console that blocks (a stopped terminal, a full pipe) never blocks the event loop.
//
// Made by main, outlives Output. write(), say() and flush() may be called by any thread, the rest
// by the event loop's. When stdout and stderr are one file (a terminal, 2>&1) they share one queue,
// and so keep the order in which they were written. The mistake to avoid: printing to fd 1 or 2 in
// any other way while this object lives.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/background_writer.h"
#include "agent/output/stream.h"
#include "agent/output/terminal_look.h"

namespace ddprun::agent {

class Console {
 public:
  struct Options {
    int stdout_fd = 1;
    int stderr_fd = 2;
    std::size_t queue_bytes = 1024 * 1024;  // for each stream
    TerminalLook look = {};                 // of those that are terminals
  };

  Console(boost::asio::any_io_executor executor, Options options);
  explicit Console(boost::asio::any_io_executor executor) : Console(executor, Options()) {}
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Takes all of `bytes` or, when the queue is full, nothing. Whole lines: the next call may be
  // another worker's.
  bool write(Stream stream, std::string_view bytes);

  // Calls `ready` once, on the event loop, when a refused write() is worth another try. First come,
  // first served.
  void when_space(Stream stream, std::function<void()> ready);

  // For what the agent itself has to say, which cannot wait: has a reserve beyond the queue. What
  // does not fit there either is dropped.
  void say(Stream stream, std::string_view lines);

  // A sentence about the console or a log file that a person should see: "ddprun: <sentence>" on
  // stderr (on stdout when stderr is what failed), or wherever `notify_with` leads it.
  void notify(std::string_view sentence);
  void notify_with(std::function<void(std::string_view sentence)> handler);

  // Where `stream` is a terminal that can show one. Empty: none any more. A line that is unfinished
  // (a worker's progress bar) is not disturbed, and neither is a queue that is full.
  void set_live_line(Stream stream, std::string_view text);
  bool can_have_live_line(Stream stream) const { return is_terminal(stream) && look_.can_redraw; }
  bool is_coloured(Stream stream) const { return is_terminal(stream) && look_.has_colour; }

  bool is_terminal(Stream stream) const { return is_terminal_[index(stream)]; }
  int fd(Stream stream) const { return fds_[index(stream)]; }

  // Calls `done` once, on the event loop, when all was written, and also what there is to say of a
  // stream that cannot be written.
  void when_written(std::function<void()> done);
  // Waits, blocking, until all was written; false when the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

 private:
  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }
  void await_written(std::size_t turn, std::function<void()> done);
  bool put(Stream stream, std::string_view bytes, std::size_t headroom_bytes);
  std::size_t queue_of(Stream stream) const { return is_one_file_ ? 0 : index(stream); }
  void call_waiting(std::size_t queue);

  std::array<int, 2> fds_;
  std::array<bool, 2> is_terminal_;
  bool is_one_file_;
  TerminalLook look_;
  std::array<bool, 2> failed_{};

  // What a terminal's last row holds.
  struct LastRow {
    bool is_empty = true;  // but for the live line
    bool has_live_line = false;
  };
  std::mutex last_row_mutex_;  // also keeps the bytes in the order of what it guards
  std::array<LastRow, 2> last_row_;

  std::array<std::vector<std::function<void()>>, 2> waiting_;
  std::function<void(std::string_view)> notice_handler_;
  std::array<std::unique_ptr<BackgroundWriter>, 2>
      writers_;  // last: their events use what is above
};

}  // namespace ddprun::agent
