// What may be shown of a text that the user gave. --rdzv-conf may hold a password, and a user may
// put it elsewhere by mistake; so every message, table and file that quotes such a text must use
// these functions. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

// A value of --rdzv-conf: "***" unless its key is known and holds no secret.
std::string shown_value(std::string_view key, std::string_view value);

// The whole text of --rdzv-conf, also if it cannot be parsed.
std::string shown_conf(std::string_view text);

// Any other text: everything after "password=", or a misspelling of it, is replaced by "***" up to
// the end of the line.
std::string shown_text(std::string_view text);

}  // namespace ddprun::cli
