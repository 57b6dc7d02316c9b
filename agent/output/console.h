// The agent's own stdout and stderr. Everything that the agent prints goes through here, so that
// the bytes of one call stay together, and a console that blocks never blocks the event loop. Do
// not print to fd 1 or 2 in another way while this object lives.
//
// Owned by the Supervisor; outlives Output. Any thread may call write(), say() and flush(); the
// other functions are for the event loop. If stdout and stderr are the same file (a terminal,
// 2>&1), they share one queue and so keep the order of the calls.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
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
    std::size_t queue_bytes = std::size_t{1024} * 1024;  // for each stream
    TerminalLook look = {};                              // for streams that are terminals
  };

  Console(boost::asio::any_io_executor executor, Options options);
  explicit Console(boost::asio::any_io_executor executor) : Console(executor, Options()) {}

  // Takes all of `bytes` or, if the queue is full, nothing (false). Write whole lines, because the
  // next call may be for another worker. `headroom_bytes` is added to the queue's limit.
  bool write(Stream stream, std::string_view bytes, std::size_t headroom_bytes = 0);

  // After a refused write(): calls `ready` once, on the event loop, when there is space; in order.
  void when_space(Stream stream, std::function<void()> ready) {
    waiting_[queue_of(stream)].push_back(std::move(ready));
  }

  // For the agent's own messages, which cannot wait: may use a reserve beyond the queue's limit. If
  // that is full too, `lines` are dropped.
  void say(Stream stream, std::string_view lines) { write(stream, lines, kReserveBytes); }

  // Tells the user a sentence about the console or a log file: "ddprun: <sentence>" on stderr (on
  // stdout if stderr cannot be written), or the handler of notify_with().
  void notify(std::string_view sentence);
  void notify_with(std::function<void(std::string_view sentence)> handler) {
    notice_handler_ = std::move(handler);
  }

  // Shows `text` as the last row of a terminal; empty: removes it. Does nothing if `stream` is not
  // a terminal that can redraw, if its last line is unfinished (a worker's progress bar), or if the
  // queue is full.
  void set_live_line(Stream stream, std::string_view text);
  bool can_have_live_line(Stream stream) const { return is_terminal(stream) && look_.can_redraw; }
  bool is_coloured(Stream stream) const { return is_terminal(stream) && look_.has_colour; }

  bool is_terminal(Stream stream) const { return is_terminal_[index(stream)]; }
  int fd(Stream stream) const { return fds_[index(stream)]; }

  // Calls `done` once, on the event loop, when everything was written, messages about this included.
  void when_written(std::function<void()> done) { await_written(0, std::move(done)); }
  // Blocks until everything was written; false: the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline);

 private:
  static constexpr std::size_t kReserveBytes = std::size_t{64} * 1024;

  static std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }
  void await_written(std::size_t turn, std::function<void()> done);
  std::size_t queue_of(Stream stream) const { return is_one_file_ ? 0 : index(stream); }

  std::array<int, 2> fds_;
  std::array<bool, 2> is_terminal_;
  bool is_one_file_;
  TerminalLook look_;
  std::array<bool, 2> failed_{};

  // The content of a terminal's last row.
  struct LastRow {
    bool is_empty = true;  // except for the live line
    bool has_live_line = false;
  };
  std::mutex last_row_mutex_;  // also held while queueing, so bytes and last_row_ change together
  std::array<LastRow, 2> last_row_;

  std::array<std::vector<std::function<void()>>, 2> waiting_;
  std::function<void(std::string_view)> notice_handler_;
  std::array<std::unique_ptr<BackgroundWriter>, 2>
      writers_;  // last: their events use the members above
};

}  // namespace ddprun::agent
