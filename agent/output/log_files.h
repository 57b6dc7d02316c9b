// The workers' log files as the agent writes them: behind one BackgroundWriter, so that a slow disk
// holds up the workers that write to it and nothing else. A full disk is reported once with the
// file's name; writing goes on when it can, and then says how much is missing. Of a disk that does not
// answer at all the user is told, too, where workers wait for it.
//
// Owned by Output, event loop only. The Console outlives it, it outlives its files.
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

#include "agent/loop/timer.h"
#include "agent/output/background_writer.h"
#include "agent/output/console.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

class LogFiles;

// Made, or emptied. May hang where its folder does: not for the event loop.
Result<rdzv::UniqueFd> open_log_file(const std::string& path);

// One open file; closed, when what is queued was written, with the last pointer to it.
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
  // on_closed: a file was closed, and nothing of it is queued any more. With `patience`, the user is
  // told when somebody waits for space, and a write has not come to its end for so long.
  LogFiles(boost::asio::any_io_executor executor, Console& console, std::function<void()> on_closed,
           std::optional<std::chrono::seconds> patience = std::nullopt);

  // Takes a descriptor that is open for writing and in blocking mode; `name` is for messages.
  std::shared_ptr<LogFile> adopt(int fd, const std::string& name);
  bool all_closed() const { return paths_.empty(); }
  // As of BackgroundWriter.
  void when_written(std::function<void()> done) { writer_.when_written(std::move(done)); }
  // Waits, blocking, until all was written or lost.
  bool flush(std::chrono::steady_clock::time_point deadline) { return writer_.flush(deadline); }
  // As of BackgroundWriter.
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
  bool has_told_ = false;  // of the write that hangs now
  Timer watch_timer_;
  BackgroundWriter writer_;  // last: its events use what is above
};

}  // namespace ddprun::agent
