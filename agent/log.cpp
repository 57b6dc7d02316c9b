#include "agent/log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <string_view>

#include "agent/console.h"

namespace ddprun::agent {
namespace {

// Console::say may be called by any thread, so the sink needs no lock of its own.
class ConsoleSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    console_.say(Stream::kStderr, std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  Console& console_;
};

spdlog::level::level_enum level_from(const Environment& environment) {
  for (const char* name : {"DDPRUN_LOG_LEVEL", "LOGLEVEL"}) {
    const auto found = environment.find(name);
    if (found == environment.end() || found->second.empty()) continue;
    std::string level = found->second;
    for (char& c : level) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    if (level == "critical") return spdlog::level::critical;
    const auto known = spdlog::level::from_str(level);
    if (known != spdlog::level::off) return known;
  }
  return spdlog::level::warn;
}

}  // namespace

std::shared_ptr<spdlog::logger> make_logger(Console& console, const Environment& environment) {
  auto logger = std::make_shared<spdlog::logger>("ddprun", std::make_shared<ConsoleSink>(console));
  logger->set_level(level_from(environment));
  logger->set_pattern("[%H:%M:%S.%e] ddprun: %v");
  return logger;
}

}  // namespace ddprun::agent
