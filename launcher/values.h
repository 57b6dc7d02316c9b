// Turns the texts of settings into values, with one sentence for a text that is none: it names
// where the text came from, says what is wrong, and what would be right. Pure.
#pragma once

#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "agent/job.h"
#include "launcher/settings.h"
#include "rendezvous/base/result.h"

namespace ddprun::cli {

// An Error that begins with the setting's origin: "--tee=7: ...", "PET_TEE=7: ...".
Error wrong(const OptionSpec& spec, const Setting& setting, std::string_view sentence);

// A decimal whole number and nothing else around it.
std::optional<long long> whole_number(std::string_view text);

Result<int> read_integer(const OptionSpec& spec, const Setting& setting, int least,
                         int most = std::numeric_limits<int>::max());
Result<bool> read_flag(const OptionSpec& spec, const Setting& setting);

// -r and -t: one digit for all ranks, or RANK:DIGIT[,RANK:DIGIT...] where ranks not named get 0.
struct StreamMap {
  agent::StreamSet all = agent::StreamSet::kNone;
  std::map<int, agent::StreamSet> of_rank;
};
Result<StreamMap> read_streams(const OptionSpec& spec, const Setting& setting);

}  // namespace ddprun::cli
