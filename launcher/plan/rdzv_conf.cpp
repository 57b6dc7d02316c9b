#include "launcher/plan/rdzv_conf.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>

#include "launcher/cli/rdzv_keys.h"
#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/leader/token.h"

namespace ddprun::cli {
namespace {

bool contains(const auto& keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}

std::optional<bool> truth(std::string_view text) {
  constexpr std::array<std::string_view, 5> kYes{"1", "true", "t", "yes", "y"};
  constexpr std::array<std::string_view, 5> kNo{"0", "false", "f", "no", "n"};
  std::string lower;
  for (const char c : text) {
    lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  if (contains(kYes, lower)) return true;
  if (contains(kNo, lower)) return false;
  return std::nullopt;
}

// A time in seconds may have units.
std::optional<long long> whole_number(std::string_view key, std::string_view value) {
  if (const auto number = parse_number<long long>(value)) return number;
  const bool is_in_seconds = key != "keep_alive_max_attempt" && key != "reconnect_grace";
  const auto time = is_in_seconds ? seconds_in(value) : std::nullopt;
  if (!time) return std::nullopt;
  const auto whole = std::chrono::floor<std::chrono::duration<long long>>(*time);
  return whole == *time ? std::optional(whole.count()) : std::nullopt;
}

std::string unknown_key(std::string_view key) {
  std::vector<std::string_view> known(kRdzvNumberKeys.begin(), kRdzvNumberKeys.end());
  known.insert(known.end(), kRdzvOtherKeys.begin(), kRdzvOtherKeys.end());
  return "nothing uses the key '" + std::string(key) + "'" + did_you_mean(key, known);
}

Result<void> check_pair(const ResolvedOption& option, std::string_view key,
                        std::string_view value) {
  if (key.empty() || value.empty()) {
    return refused(option, "give KEY=VALUE pairs, such as join_timeout=600,is_host=1");
  }
  if (contains(kRdzvReservedKeys, key)) {
    return refused(option, "'" + std::string(key) + "' has an option of its own");
  }
  if (contains(kRdzvNumberKeys, key)) {
    const auto number = whole_number(key, value);
    if (!number || *number < 1) {
      const bool has_quote = value.find_first_of("'\"") != std::string_view::npos;
      return refused(option, std::string(key) + " must be a whole number of 1 or more" +
                                 (has_quote ? ", without a quote" : ""));
    }
  }
  if (key == "cas_backoff_max_seconds" && !seconds_in(value)) {
    return refused(option, "cas_backoff_max_seconds must be a number of 0 or more");
  }
  if (key == "is_host" && !truth(value)) {
    return refused(option, "is_host must be 1 or 0 (or true, false, yes, no)");
  }
  if (key == "store_type" && value == "file") {
    return refused(option, "a store in a file is not supported; leave store_type out");
  }
  if (key == "store_type" && value != "tcp") {
    return refused(option, "store_type must be tcp");
  }
  return {};
}

// Longer than anybody waits, and small enough to be added to a clock.
constexpr long long kLongestSeconds = 1'000'000'000;
constexpr long long kMostAttempts = 1000;

std::optional<long long> number_of(const RdzvConf& conf, const std::string& key, long long most) {
  const auto found = conf.find(key);
  if (found == conf.end()) return std::nullopt;
  return std::min(*whole_number(key, found->second), most);
}

// Without blanks around it, and without one pair of quotes around the whole.
std::string_view unquoted(std::string_view text) {
  text = trimmed(text);
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"')) return text;
  const bool is_one_pair = text.find(text.front(), 1) == text.size() - 1;
  return is_one_pair ? trimmed(text.substr(1, text.size() - 2)) : text;
}

Result<rdzv::Backoff> read_pause(const ResolvedOption& option) {
  const std::vector<std::string_view> parts = split(option.text(), ':');
  const auto first = seconds_in(parts.front());
  const auto max = seconds_in(parts.back());
  if (parts.size() > 2 || !first || !max) {
    return refused(option, "give seconds, or FIRST:MAX as in 1:60");
  }
  const rdzv::Backoff pause{std::chrono::round<std::chrono::milliseconds>(*first),
                            std::chrono::round<std::chrono::milliseconds>(*max)};
  const bool never_grows = pause.first.count() == 0 && pause.max.count() > 0;
  if (pause.max < pause.first || never_grows) {
    return refused(option, "FIRST must be more than 0, and MAX at least FIRST");
  }
  return pause;
}

// "3"; "3/1h": restarts count for so long.
Result<std::pair<int, std::chrono::seconds>> read_budget(const ResolvedOption& option) {
  const std::vector<std::string_view> parts = split(option.text(), '/');
  const auto number = parse_number<int>(trimmed(parts.front()));
  const auto window = parts.size() == 2 ? seconds_in(parts.back()) : std::nullopt;
  const bool has_window = parts.size() == 2 && window && window->count() >= 1;
  if (!number || *number < 0 || (parts.size() > 1 && !has_window)) {
    return refused(
        option,
        "give a whole number of 0 or more, or NUMBER/TIME as in 3/1h for restarts within "
        "that time, at least 1 s");
  }
  return std::pair{*number, has_window ? std::chrono::round<std::chrono::seconds>(*window)
                                       : std::chrono::seconds(0)};
}

Result<std::vector<int>> read_exit_codes(const ResolvedOption& option) {
  constexpr int kHighestCode = 255;
  constexpr int kSignalBase = 128;
  std::vector<int> codes;
  if (trimmed(option.text()).empty()) return codes;
  for (const std::string_view part : split(option.text(), ',')) {
    const std::string_view word = trimmed(part);
    const auto number = parse_number<long long>(word);
    const int signal = number ? 0 : signal_number(word);
    if (signal == 0 && (!number || *number < 1 || *number > kHighestCode)) {
      return refused(option, "give exit codes from 1 to 255 or signals, such as 2,SIGSEGV");
    }
    codes.push_back(number ? static_cast<int>(*number) : kSignalBase + signal);
  }
  return codes;
}

}  // namespace

Result<RdzvConf> read_conf(const ResolvedOption& option, std::vector<std::string>& warnings) {
  RdzvConf conf;
  const std::string_view text = unquoted(option.text());
  if (text.empty()) return conf;
  for (const std::string_view part : split(text, ',')) {
    const std::string_view pair = unquoted(part);
    const std::size_t equals = pair.find('=');
    const std::string_view key = trimmed(pair.substr(0, equals));
    std::string_view value =
        equals == std::string_view::npos ? "" : trimmed(pair.substr(equals + 1));
    if (key != "password") value = unquoted(value);  // they may be a part of a password
    if (const auto good = check_pair(option, key, value); !good) return fail(good.error());
    if (!contains(kRdzvNumberKeys, key) && !contains(kRdzvOtherKeys, key)) {
      warnings.push_back(usage_error(option, unknown_key(key)).to_string());
    }
    conf[std::string(key)] = value;
  }
  return conf;
}

std::optional<bool> truth_of(const RdzvConf& conf, const std::string& key) {
  return truth(value_or_empty(conf, key));
}

std::optional<std::chrono::milliseconds> seconds_of(const RdzvConf& conf, const std::string& key) {
  const auto seconds = number_of(conf, key, kLongestSeconds);
  if (!seconds) return std::nullopt;
  return std::chrono::seconds(*seconds);
}

rdzv::KeepAlive keep_alive_of(const RdzvConf& conf) {
  rdzv::KeepAlive keep_alive;
  if (const auto interval =
          number_of(conf, "keep_alive_interval", kLongestSeconds / kMostAttempts)) {
    keep_alive.interval = std::chrono::seconds(*interval);
  }
  if (const auto attempts = number_of(conf, "keep_alive_max_attempt", kMostAttempts)) {
    keep_alive.attempts = static_cast<int>(*attempts);
  }
  if (const auto grace = number_of(conf, "reconnect_grace", kLongestSeconds)) {
    keep_alive.reconnect_grace = std::chrono::milliseconds(*grace);
  }
  return keep_alive;
}

TokenFile token_file(const Settings& settings, const RdzvConf& conf) {
  const Setting& option = settings[OptionId::kTokenFile];
  const std::string in_conf = value_or_empty(conf, "token_file");
  const bool conf_counts_more =
      !in_conf.empty() && settings[OptionId::kRdzvConf].origin.source > option.origin.source;
  if (conf_counts_more) return {in_conf, OptionId::kRdzvConf};
  return {option.text, OptionId::kTokenFile};
}

Result<rdzv::NodeProof> read_proof(const Settings& settings, const RdzvConf& conf,
                                   bool is_in_slurm_job, const std::string& munge_library,
                                   std::vector<std::string>& notes) {
  rdzv::NodeProof proof;
  const ResolvedOption no_token = resolved(settings, OptionId::kNoToken);
  const auto is_waived = read_flag(no_token);
  if (!is_waived) return fail(is_waived.error());
  proof.is_waived = *is_waived;
  if (const TokenFile file = token_file(settings, conf); !file.path.empty()) {
    if (proof.is_waived) {
      return refused(no_token, settings[file.named_by].origin.name +
                                   " names a token; leave one of the two out");
    }
    auto token = rdzv::read_token(file.path);
    if (!token)
      return fail(usage_error(resolved(settings, file.named_by), token.error().to_string()));
    proof.token = *std::move(token);
  } else if (is_in_slurm_job) {
    auto munge = rdzv::Munge::find(munge_library);
    if (munge) {
      proof.munge = *std::move(munge);
    } else {
      notes.push_back("nodes cannot prove by munge whose they are: " + munge.error().message);
    }
  }
  return proof;
}

Result<rdzv::RestartRules> read_restart_rules(const Settings& settings) {
  Taking take;
  rdzv::RestartRules rules;
  std::tie(rules.max_restarts, rules.window) =
      take(read_budget(resolved(settings, OptionId::kMaxRestarts)));
  rules.no_progress_restarts =
      take(read_integer(resolved(settings, OptionId::kNoProgressRestarts), 0));
  rules.min_uptime = take(read_seconds(resolved(settings, OptionId::kMinUptime), Zero::kAllowed));
  rules.pause_after_failure = take(read_pause(resolved(settings, OptionId::kRestartPause)));
  rules.final_exit_codes = take(read_exit_codes(resolved(settings, OptionId::kFinalExitCodes)));
  if (take.error) return fail(*std::move(take.error));
  return rules;
}

}  // namespace ddprun::cli
