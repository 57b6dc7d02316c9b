// What may be shown of a text that the user gave. A password may be in --rdzv-conf, or beside it by
// a slip of the user; so every sentence, table and file that quotes such a text quotes what these
// functions return. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ddprun::cli {

// A value of --rdzv-conf: "***" unless its key is known and holds no secret.
std::string shown_value(std::string_view key, std::string_view value);

// The whole text of --rdzv-conf, whether it can be read or not.
std::string shown_conf(std::string_view text);

// Any other text: what follows "password=", or a misspelling of it, is "***" up to the end of the
// line.
std::string shown_text(std::string_view text);

}  // namespace ddprun::cli
