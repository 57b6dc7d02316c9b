#include "worker_lib/process/log_setup.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <mutex>

#include "ddprun/error.h"
#include "rendezvous/common/unique_fd.h"
#include "worker_lib/process/files.h"
#include "worker_lib/process/stderr_line.h"

namespace ddprun {
namespace {

// A line a write, to a file that is open for appending or, without one, to stderr: spdlog's own sinks go through
// stdio, which may cut a line in two writes.
class LineSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LineSink(rdzv::UniqueFd file = {}) : file_(std::move(file)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string_view text(line.data(), line.size());
    if (!file_) return stderr_line::write(text);
    write_all(file_.get(), text);  // a full disk costs lines, not the training
  }
  void flush_() override {}

 private:
  rdzv::UniqueFd file_;
};

rdzv::UniqueFd open_file_of(int rank, const std::string& folder) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const std::string name = folder + "/rank" + std::to_string(rank) + ".log";
  rdzv::UniqueFd file(::open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) {
    throw UsageError(error_from_errno(errno, "the log file " + name + " cannot be written"));
  }
  return file;
}

spdlog::level::level_enum to_spdlog(log::Level level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return kLevels[static_cast<std::size_t>(level)];
}

constexpr char kPatternBeforeContext[] = "%H:%M:%S.%e %L %v";

// Not spdlog's default logger, which is the program's.
std::atomic<std::shared_ptr<spdlog::logger>>& own_logger() {
  static std::atomic<std::shared_ptr<spdlog::logger>> logger = [] {
    auto console = std::make_shared<LineSink>();
    console->set_pattern(kPatternBeforeContext);
    return std::make_shared<spdlog::logger>("ddprun", std::move(console));
  }();
  return logger;
}

}  // namespace

void set_up_log(int rank, int world_size, const LogOptions& options) {
  const std::string who = world_size > 1 ? "[rank " + std::to_string(rank) + "] " : "";
  const auto own_level = options.level ? to_spdlog(*options.level)
                         : rank == 0   ? spdlog::level::info
                                       : spdlog::level::warn;
  auto console = std::make_shared<LineSink>();
  console->set_level(own_level);
  console->set_pattern("%H:%M:%S.%e %L " + who + "%v");
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::move(console));
  logger->set_level(own_level);
  if (!options.folder.empty()) {
    const auto file_level = options.level ? own_level : spdlog::level::info;
    auto sink = std::make_shared<LineSink>(open_file_of(rank, options.folder));
    sink->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + who + "%v");
    logger->sinks().push_back(std::move(sink));
    logger->set_level(file_level);
  }
  own_logger().store(std::move(logger));
}

namespace log {

std::optional<Level> level_from(std::string_view name) {
  constexpr std::string_view kNames[] = {"debug", "info", "warning", "error"};
  const auto* const found = std::ranges::find(kNames, name);
  if (found == std::end(kNames)) return std::nullopt;
  return static_cast<Level>(found - kNames);
}

bool is_on(Level level) { return own_logger().load()->should_log(to_spdlog(level)); }

void write(Level level, const std::string& text) {
  own_logger().load()->log(to_spdlog(level), "{}", text);
}

}  // namespace log
}  // namespace ddprun
