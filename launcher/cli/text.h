// Text functions that several parts of the launcher use. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/trimmed.h"

namespace ddprun::cli {

// "a,,b" gives "a", "", "b"; an empty text gives one empty part.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

inline std::string replaced(std::string_view text, char what, std::string_view by) {
  std::string out;
  for (const char c : text) out += c == what ? by : std::string_view(&c, 1);
  return out;
}

// ---- the intended word behind a misspelt one: the nearest of the valid words

// How many edits turn one word into the other: a letter inserted, deleted or replaced, or two
// neighbours swapped.
std::size_t edit_distance(std::string_view from, std::string_view to);

// The candidate nearest to `word`; empty if none is near enough.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// "; did you mean TEE?", with `before` directly before the word; `otherwise` if none is near enough.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates,
                         std::string_view before = "", std::string_view otherwise = "");

}  // namespace ddprun::cli
