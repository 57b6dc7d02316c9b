// One stream of one worker inside of the agent: reads the pipe (or pseudo-terminal), and writes to
// the log file, the console, and the tail for the failure report.
//
// Owned by Output until its last bytes are delivered (on_done); event loop only. It does not read
// while earlier bytes wait for space, so that the worker blocks and memory is bounded; but if there
// is a log file, lines are dropped from a console that is full, and their number is shown.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
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
#include "rendezvous/common/loop/timer.h"

namespace ddprun::agent {

class WorkerStream : public std::enable_shared_from_this<WorkerStream> {
 public:
  struct Destinations {
    Stream stream = Stream::kStdout;
    bool console = false;
    std::optional<std::string> prefix;  // of whole lines; none: unchanged bytes
    std::shared_ptr<LogFile> file;
    std::shared_ptr<LogFile> filtered_file;  // gets the lines that contain one of `filters`
    std::vector<std::string> filters;
    std::size_t tail_lines = 0;
  };

  // Takes `fd`, which must not block. `on_done` is called once, when everything was delivered.
  WorkerStream(boost::asio::any_io_executor executor, Console& console, int fd,
               Destinations destinations, std::function<void(const WorkerStream*)> on_done);

  void start() { wait_readable(); }

  // Call it when the worker's process group is dead: reads the rest of the pipe and closes it.
  void end();

  std::vector<std::string> tail() const { return tail_.lines(); }
  const Tail& kept() const { return tail_; }
  int fd() { return descriptor_.native_handle(); }

 private:
  enum Target { kFile, kFilteredFile, kConsole, kTargets };

  void wait_readable();
  std::size_t read_some();  // bytes read; 0: nothing to read now, or the end
  std::size_t bytes_there();
  void close();  // at the end of the pipe
  void take(std::string_view bytes);
  void take_raw(std::string_view bytes);
  void add_line(std::string_view line);
  void deliver_lines();
  void hold();
  void release_held();
  void to_console(std::string_view text);
  void deliver(Target target, std::string_view bytes);
  LogFile& file(Target target) const {
    return target == kFile ? *destinations_.file : *destinations_.filtered_file;
  }
  bool offer(Target target, std::string_view bytes);
  void when_space(Target target);
  void retry(Target target);
  bool is_blocked() const;
  void check_done();

  boost::asio::posix::stream_descriptor descriptor_;
  Timer hold_timer_;
  Console& console_;
  Destinations destinations_;
  std::function<void(const WorkerStream*)> on_done_;
  Tail tail_;
  LineSplitter splitter_;
  std::string lines_;           // with prefix, of the bytes just read
  std::string filtered_lines_;  // those of them that match a filter
  std::string held_;            // an unfinished line, kept for kHold
  std::array<std::string, kTargets> undelivered_;
  std::uint64_t dropped_lines_ = 0;
  bool is_waiting_to_read_ = false;
  bool is_waiting_to_tell_ = false;  // the number of dropped lines
  bool is_at_end_ = false;
};

}  // namespace ddprun::agent
