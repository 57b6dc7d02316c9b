#include "ddprun/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "worker_lib/src/stderr_line.h"

namespace ddprun {
namespace {

// spdlog's own stderr sinks go through stdio, which may cut a line in two writes.
class LineSink : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    stderr_line::write({line.data(), line.size()});
  }
  void flush_() override {}
};

spdlog::level::level_enum to_spdlog(log::Level level) {
  switch (level) {
    case log::Level::kDebug:
      return spdlog::level::debug;
    case log::Level::kInfo:
      return spdlog::level::info;
    case log::Level::kWarning:
      return spdlog::level::warn;
    case log::Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void set_up_log(int rank, int world_size) {
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::make_shared<LineSink>());
  logger->set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
  const std::string who = world_size > 1 ? "[rank " + std::to_string(rank) + "] " : "";
  logger->set_pattern("%H:%M:%S.%e %L " + who + "%v");
  spdlog::set_default_logger(std::move(logger));
}

namespace log {

bool is_on(Level level) { return spdlog::default_logger_raw()->should_log(to_spdlog(level)); }

void write(Level level, const std::string& text) {
  spdlog::default_logger_raw()->log(to_spdlog(level), "{}", text);
}

}  // namespace log
}  // namespace ddprun
