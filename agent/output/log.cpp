#include "agent/output/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string_view>

#include "agent/output/console.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

// With a mutex, because the store's thread logs too, and spdlog's formatter is not thread-safe.
class ConsoleSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    // Messages contain text of hosts, programs and other nodes, which may have escape sequences.
    const std::string sentence = printable({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg safe = message;
    safe.payload = sentence;
    spdlog::memory_buf_t line;
    formatter_->format(safe, line);
    const std::string_view text(line.data(), line.size());
    if (!console_.is_coloured(Stream::kStderr) || safe.level < spdlog::level::warn) {
      console_.say(Stream::kStderr, text);
      return;
    }
    const Colour colour = safe.level == spdlog::level::warn ? Colour::kYellow : Colour::kRed;
    const std::size_t begin = safe.color_range_start;
    const std::size_t end = safe.color_range_end;
    console_.say(Stream::kStderr,
                 std::string(text.substr(0, begin)) +
                     coloured(text.substr(begin, end - begin), colour, /*has_colour=*/true) +
                     std::string(text.substr(end)));
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
  logger->set_pattern("[%H:%M:%S.%e] %^ddprun:%$ %v");
  return logger;
}

bool logs_info(const Environment& environment) {
  return level_from(environment) <= spdlog::level::info;
}

}  // namespace ddprun::agent
