// Turns the texts of settings into values. For a wrong text the error is one sentence that names
// where the text came from, what is wrong, and what would be right. Pure.
#pragma once

#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/job.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// Takes values out of results. The first error is kept; values taken after it do not count.
struct Taking {
  std::optional<Error> error;

  template <typename T>
  T operator()(Result<T> result) {
    if (result) return *std::move(result);
    if (!error) error = std::move(result.error());
    return T{};
  }
};

// An Error that begins with the setting's origin: "--tee=7: ...", "PET_TEE=7: ...". It does not show
// a password in the text.
Error usage_error(const ResolvedOption& option, std::string_view sentence);

inline tl::unexpected<Error> refused(const ResolvedOption& option, std::string_view sentence) {
  return fail(usage_error(option, sentence));
}

Result<int> read_integer(const ResolvedOption& option, int least,
                         int most = std::numeric_limits<int>::max());
Result<bool> read_flag(const ResolvedOption& option);

// "2", or "1:4" for an elastic job.
struct NodeCount {
  int least;
  int most;
};
Result<NodeCount> read_node_count(const ResolvedOption& option);

// One of the option's choices; an empty default stays empty.
Result<std::string> read_choice(const ResolvedOption& option);
// The place of the option's text among these.
Result<std::size_t> read_one_of(const ResolvedOption& option,
                                const std::vector<std::string_view>& choices);

// A time in seconds, "30" or "0.5", or with units, "90s", "5m", "1h30m" (ms, s, m, h, d): finite, not negative, and small enough to be added to a clock.
std::optional<std::chrono::duration<double>> seconds_in(std::string_view text);

enum class Zero { kAllowed, kRefused };
Result<std::chrono::milliseconds> read_seconds(const ResolvedOption& option, Zero zero);

// --hang-timeout: "off", "auto", or a time in seconds.
Result<rdzv::HangTimeout> read_hang_timeout(const ResolvedOption& option);

// -r and -t: one digit for all ranks, or RANK:DIGIT[,RANK:DIGIT...] where ranks not named get 0.
using StreamMap = std::pair<agent::StreamSet, std::map<int, agent::StreamSet>>;
Result<StreamMap> read_streams(const ResolvedOption& option);

// "0,2,5"; empty: none.
Result<std::vector<int>> read_ranks(const ResolvedOption& option);

// "app,,le,ora" is "app,le" and "ora"; an empty text is one filter that matches every line.
std::vector<std::string> read_filters(const ResolvedOption& option);

// Names that are no signals are skipped with a warning, as in torchrun. A signal that no process can
// catch is an Error, and so is a list in which no signal is left.
Result<std::vector<int>> read_signals(const ResolvedOption& option,
                                      std::vector<std::string>& warnings);

}  // namespace ddprun::cli
