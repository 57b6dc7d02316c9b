#include "launcher/settings/values.h"

#include <algorithm>
#include <csignal>

#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

std::optional<agent::StreamSet> stream_set(std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') return std::nullopt;
  return static_cast<agent::StreamSet>(digit[0] - '0');
}

std::optional<int> rank_number(std::string_view text) {
  const auto rank = parse_number<int>(text);
  return rank && *rank >= 0 ? rank : std::nullopt;
}

// "90s", "1h30m"
std::optional<double> seconds_in_units(std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}};
  constexpr std::string_view kDigits = "0123456789.";
  std::optional<double> seconds;
  while (!text.empty()) {
    const std::size_t digits = std::min(text.find_first_not_of(kDigits), text.size());
    const auto number = parse_number<double>(text.substr(0, digits));
    text.remove_prefix(digits);
    const std::size_t letters = std::min(text.find_first_of(kDigits), text.size());
    const auto* const unit = std::ranges::find(kUnits, text.substr(0, letters),
                                               &std::pair<std::string_view, double>::first);
    text.remove_prefix(letters);
    if (!number || unit == std::end(kUnits)) return std::nullopt;
    seconds = seconds.value_or(0) + *number * unit->second;
  }
  return seconds;
}

bool is_in_quotes(std::string_view text) {
  return text.size() > 1 && (text.front() == '\'' || text.front() == '"') &&
         text.back() == text.front();
}

}  // namespace

Error usage_error(const ResolvedOption& option, std::string_view sentence) {
  const Origin& origin = option.setting.origin;
  const std::string value =
      option.spec.id == OptionId::kRdzvConf ? shown_conf(option.text()) : shown_text(option.text());
  std::string text = origin.name;
  if (origin.source == Source::kDefault) text = "--" + std::string(option.spec.name);
  if (origin.source == Source::kFile) {
    text += ": " + std::string(option.spec.name) + " = " + value;
  } else if (option.spec.kind != Kind::kFlag || origin.source != Source::kCommandLine) {
    text += "=" + value;
  }
  text += ": " + std::string(sentence);
  // read_conf() takes quotes off --rdzv-conf.
  if (option.spec.id != OptionId::kRdzvConf && is_in_quotes(option.text())) {
    text += "; the quotes are a part of the value, take them off";
  }
  if (option.text().ends_with('\r')) {
    text +=
        "; it ends with the carriage return of a script or file with Windows' line ends, which "
        "sed -i 's/\\r$//' takes off";
  }
  return Error{ErrorCode::kInvalidArgument, std::move(text), {}};
}

Result<int> read_integer(const ResolvedOption& option, int least, int most) {
  const auto value = parse_number<int>(option.text());
  if (value && *value >= least && *value <= most) return *value;
  std::string wanted = "give a whole number ";
  wanted += most == std::numeric_limits<int>::max()
                ? "of " + std::to_string(least) + " or more"
                : "from " + std::to_string(least) + " to " + std::to_string(most);
  return refused(option, wanted);
}

Result<NodeCount> read_node_count(const ResolvedOption& option) {
  const std::vector<std::string_view> parts = split(option.text(), ':');
  const auto least = parse_number<long long>(parts.front());
  const auto most = parse_number<long long>(parts.back());
  if (parts.size() > 2 || !least || !most) {
    return refused(option, "give a number of nodes, or MIN:MAX as in 2:4");
  }
  if (*least < 1 || *most < *least || *most > std::numeric_limits<int>::max()) {
    return refused(option, "MIN must be at least 1, and MAX at least MIN; here MIN is " +
                               std::to_string(*least) + " and MAX is " + std::to_string(*most));
  }
  return NodeCount{static_cast<int>(*least), static_cast<int>(*most)};
}

Result<bool> read_flag(const ResolvedOption& option) {
  if (option.is_default()) return false;
  if (const auto number = parse_number<long long>(option.text())) return *number != 0;
  if (option.text() == "true") return true;
  if (option.text() == "false") return false;
  return refused(option, "give 1 (on) or 0 (off)");
}

Result<std::string> read_choice(const ResolvedOption& option) {
  if (option.is_default()) return option.text();
  return read_one_of(option, choices_of(option.spec)).map([&](std::size_t) {
    return option.text();
  });
}

Result<std::size_t> read_one_of(const ResolvedOption& option,
                                const std::vector<std::string_view>& choices) {
  const auto found = std::ranges::find(choices, option.text());
  if (found != choices.end()) return static_cast<std::size_t>(found - choices.begin());
  const std::string all_but_last = joined(std::span(choices).first(choices.size() - 1));
  return refused(option, "give " + all_but_last + " or " + std::string(choices.back()) +
                             did_you_mean(option.text(), choices));
}

std::optional<std::chrono::duration<double>> seconds_in(std::string_view text) {
  constexpr double kLongest = 1e9;  // thirty years
  auto seconds = parse_number<double>(text);
  if (!seconds) seconds = seconds_in_units(text);
  if (!seconds || !(*seconds >= 0 && *seconds <= kLongest)) return std::nullopt;
  return std::chrono::duration<double>(*seconds);
}

Result<std::chrono::milliseconds> read_seconds(const ResolvedOption& option, Zero zero) {
  const auto time = seconds_in(option.text());
  if (!time || (zero == Zero::kRefused && time->count() <= 0)) {
    return refused(option, zero == Zero::kAllowed
                               ? "give a time in seconds, such as 30 or 0.5, or as in 90s, 5m, 2h"
                               : "give a time in seconds, more than 0, such as 0.1, or as in 5m");
  }
  return std::chrono::round<std::chrono::milliseconds>(*time);
}

Result<rdzv::HangTimeout> read_hang_timeout(const ResolvedOption& option) {
  if (option.text() == "off") return rdzv::HangTimeout{};
  if (option.text() == "auto") return rdzv::HangTimeout{.is_automatic = true};
  const auto time = seconds_in(option.text());
  if (!time || time->count() < 1) {
    return refused(option,
                   "give a time in seconds, at least 1, such as 600 or 10m, or auto, or off");
  }
  return rdzv::HangTimeout{.fixed = std::chrono::round<std::chrono::milliseconds>(*time)};
}

Result<StreamMap> read_streams(const ResolvedOption& option) {
  if (const auto all = stream_set(option.text())) return StreamMap{*all, {}};
  StreamMap streams;
  for (const std::string_view part : split(option.text(), ',')) {
    const std::size_t colon = part.find(':');
    const auto rank = rank_number(part.substr(0, colon));
    const auto set =
        colon == std::string_view::npos ? std::nullopt : stream_set(part.substr(colon + 1));
    if (!rank || !set) {
      return refused(option,
                     "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all workers or by "
                     "local rank as in 0:3,1:2");
    }
    streams.second[*rank] = *set;
  }
  return streams;
}

Result<std::vector<int>> read_ranks(const ResolvedOption& option) {
  std::vector<int> ranks;
  if (option.text().empty()) return ranks;
  for (const std::string_view part : split(option.text(), ',')) {
    const auto rank = rank_number(trimmed(part));
    if (!rank) return refused(option, "give ranks, such as 0,2,5");
    ranks.push_back(*rank);
  }
  return ranks;
}

std::vector<std::string> read_filters(const ResolvedOption& option) {
  if (option.is_default()) return {};
  std::vector<std::string> filters(1);
  const std::string& text = option.text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

Result<std::vector<int>> read_signals(const ResolvedOption& option,
                                      std::vector<std::string>& warnings) {
  std::vector<int> signals;
  for (const std::string_view part : split(option.text(), ',')) {
    const auto number = signal_number(trimmed(part));
    if (number == 0) {
      warnings.push_back(
          usage_error(option, "'" + std::string(part) + "' is no signal; it is skipped")
              .to_string());
      continue;
    }
    if (number == SIGKILL || number == SIGSTOP) {
      return refused(option, "no process can catch " + signal_name(number));
    }
    if (std::ranges::find(signals, number) == signals.end()) signals.push_back(number);
  }
  if (signals.empty()) return refused(option, "name at least one signal, such as SIGTERM");
  return signals;
}

}  // namespace ddprun::cli
