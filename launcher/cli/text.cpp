#include "launcher/cli/text.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ddprun::cli {

std::size_t edit_distance(std::string_view from, std::string_view to) {
  // Three rows of the usual table: a swap of neighbours needs the two rows above.
  std::vector<std::size_t> two_above(to.size() + 1);
  std::vector<std::size_t> above(to.size() + 1);
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::swap(two_above, above);
    std::swap(above, row);
    row[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t replaced = above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, above[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1]) {
        row[j] = std::min(row[j], two_above[j - 2] + 1);
      }
    }
  }
  return row[to.size()];
}

std::string_view nearest(std::string_view word, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  // With a third of the letters wrong it is another word; but "tea" for "tee" should be found.
  std::size_t best_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates,
                         std::string_view before, std::string_view otherwise) {
  const std::string_view meant = nearest(word, candidates);
  if (meant.empty()) return std::string(otherwise);
  return "; did you mean " + std::string(before) + std::string(meant) + "?";
}

}  // namespace ddprun::cli
