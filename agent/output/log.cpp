#include "agent/output/log.h"

#include <spdlog/logger.h>

#include <string>

#include "agent/output/console.h"
#include "agent/output/terminal_look.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/time_text.h"

namespace ddprun::agent {
namespace {

// "[16:03:12.042] ddprun: ..." Not spdlog's formatter: it is for one thread at a time, and most of
// what spdlog costs to compile and to load.
class ConsoleSink final : public spdlog::sinks::sink {
 public:
  explicit ConsoleSink(Console& console) : console_(console) {}

  void log(const spdlog::details::log_msg& message) override {
    const bool has_colour =
        message.level >= spdlog::level::warn && console_.is_coloured(Stream::kStderr);
    const Colour colour = message.level == spdlog::level::warn ? Colour::kYellow : Colour::kRed;
    // Messages contain text of hosts, programs and other nodes, which may have escape sequences.
    console_.say(Stream::kStderr,
                 "[" + time_text("%H:%M:%S", message.time) + milliseconds_of(message.time) + "] " +
                     coloured("ddprun:", colour, has_colour) + " " +
                     printable({message.payload.data(), message.payload.size()}) + "\n");
  }
  void flush() override {}
  void set_pattern(const std::string&) override {}
  void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

 private:
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

spdlog::level::level_enum in_spdlog(Log::Level level) {
  switch (level) {
    case Log::Level::kDebug:
      return spdlog::level::debug;
    case Log::Level::kInfo:
      return spdlog::level::info;
    case Log::Level::kWarning:
      return spdlog::level::warn;
    case Log::Level::kError:
      break;
  }
  return spdlog::level::err;
}

}  // namespace

Log::Log(Console& console, const Environment& environment)
    : logger_(std::make_shared<spdlog::logger>("ddprun", std::make_shared<ConsoleSink>(console))) {
  logger_->set_level(level_from(environment));
}

void Log::write(Level level, std::string_view text) const {
  logger_->log(in_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

bool Log::writes(Level level) const { return logger_->should_log(in_spdlog(level)); }

bool logs_info(const Environment& environment) {
  return level_from(environment) <= spdlog::level::info;
}

}  // namespace ddprun::agent
