#include "agent/output/log_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr std::size_t kQueueBytes = std::size_t{128} * 1024;  // for each file

}  // namespace

Result<rdzv::UniqueFd> open_log_file(const std::string& path) {
  // O_APPEND, so that writing continues at the new end if the file is emptied (logrotate).
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return fail(error_from_errno(errno, "cannot open the log file " + path));
  return rdzv::UniqueFd(fd);
}

LogFiles::LogFiles(boost::asio::any_io_executor executor, Console& console,
                   std::function<void()> on_closed, std::optional<std::chrono::seconds> patience)
    : console_(console),
      on_closed_(std::move(on_closed)),
      patience_(patience),
      watch_timer_(executor),
      writer_(std::move(executor), events()) {}

void LogFiles::watch() {
  if (!patience_ || std::exchange(is_watching_, true)) return;
  watch_timer_.arm(*patience_, [this] { look_at_writer(); });
}

void LogFiles::look_at_writer() {
  is_watching_ = false;
  const auto busy = writer_.busy_for();
  const bool hangs = busy && *busy >= *patience_ && !waiting_.empty();
  if (hangs && !std::exchange(has_told_, true)) {
    const std::string& path = paths_.at(waiting_.begin()->first);
    console_.notify(path + " has taken nothing for " + std::to_string(patience_->count()) +
                    " s; its file system seems to hang, and its worker waits when it prints");
  }
  if (!hangs) has_told_ = false;
  if (!waiting_.empty()) watch();
}

BackgroundWriter::Events LogFiles::events() {
  BackgroundWriter::Events events;
  events.space = [this](Sink sink) {
    const auto waiting = waiting_.extract(sink);
    if (!waiting) return;
    const auto ready = std::move(waiting.mapped());
    for (const auto& call : ready) call();
  };
  events.failed = [this](Sink sink, int error) {
    console_.notify("cannot write " + paths_[sink] + " (" + std::strerror(error) +
                    "); the job goes on, and writing is tried again");
  };
  events.recovered = [this](Sink sink, std::uint64_t lost_bytes) {
    console_.notify("writing " + paths_[sink] + " again; " + std::to_string(lost_bytes) +
                    " bytes are missing in it");
  };
  events.closed = [this](Sink sink, std::uint64_t lost_bytes) {
    if (lost_bytes > 0) {
      console_.notify("the last " + std::to_string(lost_bytes) + " bytes are missing in " +
                      paths_[sink]);
    }
    paths_.erase(sink);
    on_closed_();
  };
  return events;
}

std::shared_ptr<LogFile> LogFiles::adopt(int fd, const std::string& name) {
  const Sink sink = writer_.add(fd, kQueueBytes);
  paths_[sink] = name;
  return std::make_shared<LogFile>(*this, sink, name);
}

LogFile::LogFile(LogFiles& files, BackgroundWriter::Sink sink, std::string path)
    : files_(files), sink_(sink), path_(std::move(path)) {}

LogFile::~LogFile() {
  files_.waiting_.erase(sink_);
  files_.writer_.close(sink_);
}

bool LogFile::write(std::string_view bytes) { return files_.writer_.write(sink_, bytes); }

void LogFile::when_space(std::function<void()> ready) {
  files_.waiting_[sink_].push_back(std::move(ready));
  files_.watch();
}

}  // namespace ddprun::agent
