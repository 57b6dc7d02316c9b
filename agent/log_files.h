// The workers' log files as the agent writes them: behind one BackgroundWriter, so that a slow disk
// holds up the workers that write to it and nothing else. A full disk is reported once with the
// file's name; writing goes on when it can, and then says how much is missing.
//
// Owned by Output, event loop only. The Console outlives it, it outlives its files.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/background_writer.h"
#include "agent/console.h"
#include "rendezvous/base/result.h"

namespace ddprun::agent {

class LogFiles;

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
  // on_closed: a file was closed, and nothing of it is queued any more.
  LogFiles(boost::asio::any_io_executor executor, Console& console,
           std::function<void()> on_closed);

  Result<std::shared_ptr<LogFile>> open(const std::string& path);  // made, or emptied
  // Takes a descriptor that is open for writing and in blocking mode; `name` is for messages.
  std::shared_ptr<LogFile> adopt(int fd, const std::string& name);
  bool all_closed() const { return paths_.empty(); }
  // Waits, blocking, until all was written or lost.
  bool flush(std::chrono::steady_clock::time_point deadline) { return writer_.flush(deadline); }

 private:
  friend class LogFile;
  using Sink = BackgroundWriter::Sink;

  BackgroundWriter::Events events();

  Console& console_;
  const std::function<void()> on_closed_;
  std::map<Sink, std::string> paths_;
  std::map<Sink, std::vector<std::function<void()>>> waiting_;
  BackgroundWriter writer_;  // last: its events use what is above
};

}  // namespace ddprun::agent
