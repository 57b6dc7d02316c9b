// One stream of one worker on its way through the agent: from the pipe (or pseudo-terminal) into
// the log file, onto the console, and into the tail that the failure report shows.
//
// Owned by Output; event loop only. Reads at most one buffer for each time the pipe is ready, and
// stops reading while something it read still waits for room, so that the worker waits, memory
// stays bounded and other events get their turn. The exception: with a log file the console's copy
// is dropped when the console is full, counted, and the count is shown.
//
// A stream whose worker has ended is kept until its last bytes are delivered (on_done).
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/console.h"
#include "agent/output/line_splitter.h"
#include "agent/output/log_files.h"
#include "agent/output/tail.h"

namespace ddprun::agent {

class WorkerStream : public std::enable_shared_from_this<WorkerStream> {
 public:
  struct Destinations {
    Stream stream = Stream::kStdout;
    bool console = false;
    std::optional<std::string> prefix;  // whole lines behind it; without: bytes as they come
    std::shared_ptr<LogFile> file;
    std::shared_ptr<LogFile> filtered_file;  // also gets the lines that contain one of these
    std::vector<std::string> filters;
    std::size_t tail_lines = 0;
  };

  // Takes `fd`, which must be non-blocking. on_done is called once, when all was delivered after
  // the end.
  WorkerStream(boost::asio::any_io_executor executor, Console& console, int fd,
               Destinations destinations, std::function<void(const WorkerStream*)> on_done);

  void start();

  // The worker and its group are dead: takes what the pipe still holds, and closes it.
  void end();

  std::vector<std::string> tail() const { return tail_.lines(); }
  const Tail& kept() const { return tail_; }
  int fd() { return descriptor_.native_handle(); }

 private:
  enum Target { kFile, kFilteredFile, kConsole, kTargets };

  void wait_readable();
  std::size_t read_some();  // 0: nothing there now, or the end
  std::size_t bytes_there();
  void close();  // the pipe is at its end
  void take(std::string_view bytes);
  void take_lines(std::string_view bytes);
  void take_raw(std::string_view bytes);
  void add_line(std::string_view line);
  void deliver_lines();
  void hold();
  void release_held();
  void to_console(std::string_view text);
  void deliver(Target target, std::string_view bytes);
  bool offer(Target target, std::string_view bytes);
  void when_space(Target target);
  void retry(Target target);
  bool is_blocked() const;
  void check_done();

  boost::asio::posix::stream_descriptor descriptor_;
  boost::asio::steady_timer hold_timer_;
  Console& console_;
  Destinations destinations_;
  std::function<void(const WorkerStream*)> on_done_;
  Tail tail_;
  LineSplitter splitter_;
  std::string lines_;           // prefixed, of the bytes just read
  std::string filtered_lines_;  // those of them that match
  std::string held_;            // an unfinished line that may still be finished in a moment
  std::array<std::string, kTargets> undelivered_;
  std::uint64_t dropped_lines_ = 0;
  bool is_waiting_to_read_ = false;
  bool is_waiting_to_tell_ = false;  // of the dropped lines
  bool is_at_end_ = false;
};

}  // namespace ddprun::agent
