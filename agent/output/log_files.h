// Log files that the agent writes, with one BackgroundWriter, so that a slow disk delays only the
// workers that write to it. The user is told once, with the file's name, of a disk that is full or
// does not answer while workers wait for it. Owned by Output and by EventSink, event loop only. The
// Console outlives it; it outlives its files.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/output/background_writer.h"
#include "agent/output/console.h"
#include "rendezvous/common/loop/timer.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class LogFiles;

// Makes the file, or empties it. May hang: not for the event loop.
Result<rdzv::UniqueFd> open_log_file(const std::string& path);

// One open file. After the last pointer is gone it is closed as soon as its queue was written.
class LogFile {
 public:
  LogFile(LogFiles& files, BackgroundWriter::Sink sink, std::string path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  bool write(std::string_view bytes);  // false: no room now
  void when_space(std::function<void()> ready);
  const std::string& path() const { return path_; }

 private:
  LogFiles& files_;
  const BackgroundWriter::Sink sink_;
  const std::string path_;
};

class LogFiles {
 public:
  // `on_closed`: a file was closed, and its queue is empty. With `patience` the user is told if a
  // worker waits for space and a write has been running for that long.
  LogFiles(boost::asio::any_io_executor executor, Console& console, std::function<void()> on_closed,
           std::optional<std::chrono::seconds> patience = std::nullopt);

  // Takes a descriptor that is open for writing and in blocking mode; `name` is for messages.
  std::shared_ptr<LogFile> adopt(int fd, const std::string& name);
  bool all_closed() const { return paths_.empty(); }
  // See BackgroundWriter.
  void when_written(std::function<void()> done) { writer_.when_written(std::move(done)); }
  // Blocks until everything was written or lost; false: the deadline came first.
  bool flush(std::chrono::steady_clock::time_point deadline) { return writer_.flush(deadline); }
  // See BackgroundWriter.
  auto busy_for() const { return writer_.busy_for(); }

 private:
  friend class LogFile;
  using Sink = BackgroundWriter::Sink;

  BackgroundWriter::Events events();
  void watch();
  void look_at_writer();

  Console& console_;
  const std::function<void()> on_closed_;
  std::map<Sink, std::string> paths_;
  std::map<Sink, std::vector<std::function<void()>>> waiting_;
  const std::optional<std::chrono::seconds> patience_;
  bool is_watching_ = false;
  bool has_told_ = false;  // the user knows of the write that hangs
  Timer watch_timer_;
  BackgroundWriter writer_;  // last: its events use the members above
};

}  // namespace ddprun::agent
