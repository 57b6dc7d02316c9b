// What a user meant by a misspelt word: the nearest of the words that would have been right. Pure.
#pragma once

#include <string_view>
#include <vector>

namespace ddprun::cli {

// Edits that turn one word into the other: a letter more, less or different, or two swapped.
std::size_t edit_distance(std::string_view from, std::string_view to);

// The candidate nearest to `word`, or empty when none is near enough to be what was meant.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace ddprun::cli
