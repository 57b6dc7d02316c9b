// The intended word behind a misspelt one: the nearest of the valid words. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cli {

// How many edits turn one word into the other: a letter inserted, deleted or replaced, or two
// neighbours swapped.
std::size_t edit_distance(std::string_view from, std::string_view to);

// The candidate nearest to `word`; empty if none is near enough.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// "; did you mean TEE?", with `before` directly before the word; `otherwise` if none is near enough.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates,
                         std::string_view before = "", std::string_view otherwise = "");

}  // namespace ddprun::cli
