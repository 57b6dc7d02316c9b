#include "launcher/values.h"

#include <charconv>
#include <optional>
#include <vector>

namespace ddprun::cli {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<agent::StreamSet> stream_set(std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') return std::nullopt;
  return static_cast<agent::StreamSet>(digit[0] - '0');
}

}  // namespace

Error wrong(const OptionSpec& spec, const Setting& setting, std::string_view sentence) {
  std::string text;
  if (setting.origin.source == Source::kFile) {
    text = setting.origin.name + ": " + std::string(spec.name) + " = " + setting.text;
  } else {
    text = setting.origin.source == Source::kDefault ? "--" + std::string(spec.name)
                                                     : setting.origin.name;
    text += "=" + setting.text;
  }
  return Error{ErrorCode::kInvalidArgument, text + ": " + std::string(sentence), {}};
}

std::optional<long long> whole_number(std::string_view text) {
  long long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Result<int> read_integer(const OptionSpec& spec, const Setting& setting, int least, int most) {
  const auto value = whole_number(setting.text);
  if (value && *value >= least && *value <= most) return static_cast<int>(*value);
  std::string wanted = "give a whole number ";
  wanted += most == std::numeric_limits<int>::max()
                ? "of " + std::to_string(least) + " or more"
                : "from " + std::to_string(least) + " to " + std::to_string(most);
  return fail(wrong(spec, setting, wanted));
}

Result<bool> read_flag(const OptionSpec& spec, const Setting& setting) {
  if (setting.is_default()) return false;
  if (const auto number = whole_number(setting.text)) return *number != 0;
  if (setting.text == "true") return true;
  if (setting.text == "false") return false;
  return fail(wrong(spec, setting, "give 1 (on) or 0 (off)"));
}

Result<StreamMap> read_streams(const OptionSpec& spec, const Setting& setting) {
  StreamMap streams;
  if (const auto all = stream_set(setting.text)) {
    streams.all = *all;
    return streams;
  }
  for (const std::string_view part : split(setting.text, ',')) {
    const std::size_t colon = part.find(':');
    const auto rank = whole_number(part.substr(0, colon));
    const auto set =
        colon == std::string_view::npos ? std::nullopt : stream_set(part.substr(colon + 1));
    if (!rank || *rank < 0 || *rank > std::numeric_limits<int>::max() || !set) {
      return fail(wrong(spec, setting,
                        "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all workers or by "
                        "local rank as in 0:3,1:2"));
    }
    streams.of_rank[static_cast<int>(*rank)] = *set;
  }
  return streams;
}

}  // namespace ddprun::cli
