#include "launcher/plan/restart_options.h"

#include <string_view>
#include <vector>

#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exit_status.h"

namespace ddprun::cli {
namespace {

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

Result<std::vector<int>> read_exit_codes(const ResolvedOption& option) {
  constexpr int kHighestCode = 255;
  constexpr int kSignalBase = 128;
  std::vector<int> codes;
  if (trimmed(option.text()).empty()) return codes;
  for (const std::string_view part : split(option.text(), ',')) {
    const std::string_view word = trimmed(part);
    const auto number = whole_number(word);
    const int signal = number ? 0 : signal_number(word);
    if (signal == 0 && (!number || *number < 1 || *number > kHighestCode)) {
      return refused(option, "give exit codes from 1 to 255 or signals, such as 2,SIGSEGV");
    }
    codes.push_back(number ? static_cast<int>(*number) : kSignalBase + signal);
  }
  return codes;
}

}  // namespace

Result<rdzv::RestartRules> read_restart_rules(const Settings& settings) {
  Taking take;
  rdzv::RestartRules rules;
  rules.max_restarts = take(read_integer(resolved(settings, OptionId::kMaxRestarts), 0));
  rules.min_uptime = take(read_seconds(resolved(settings, OptionId::kMinUptime), Zero::kAllowed));
  rules.pause_after_failure = take(read_pause(resolved(settings, OptionId::kRestartPause)));
  rules.final_exit_codes = take(read_exit_codes(resolved(settings, OptionId::kFinalExitCodes)));
  if (take.error) return fail(*std::move(take.error));
  return rules;
}

}  // namespace ddprun::cli
