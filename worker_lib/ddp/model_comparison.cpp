#include "worker_lib/ddp/model_comparison.h"

#include <algorithm>
#include <string_view>

#include "worker_lib/process/message_text.h"

namespace ddprun {
namespace {

struct Line {
  std::string_view name, what;
  bool operator==(const Line& other) const = default;
};

std::vector<Line> lines_of(std::string_view description) {
  std::vector<Line> lines;
  while (!description.empty()) {
    const auto line = description.substr(0, description.find('\n'));
    description.remove_prefix(std::min(description.size(), line.size() + 1));
    const auto tab = std::min(line.find('\t'), line.size());
    lines.push_back({line.substr(0, tab), line.substr(std::min(line.size(), tab + 1))});
  }
  return lines;
}

// "A on rank 0 and B on ranks 1 and 3": what the ranks have, each different thing once.
std::string by_rank(const std::vector<std::string>& things) {
  std::string text;
  std::vector<bool> is_told(things.size(), false);
  for (std::size_t rank = 0; rank < things.size(); ++rank) {
    if (is_told[rank]) continue;
    std::vector<int> ranks;
    for (std::size_t other = rank; other < things.size(); ++other) {
      if (things[other] != things[rank]) continue;
      is_told[other] = true;
      ranks.push_back(static_cast<int>(other));
    }
    text += (text.empty() ? "" : " and ") + things[rank] + " on " + ranks_text(ranks);
  }
  return text;
}

}  // namespace

std::string first_difference(const std::vector<std::string>& descriptions) {
  std::vector<std::vector<Line>> models;
  std::size_t longest = 0;
  for (const auto& description : descriptions) {
    longest = std::max(longest, models.emplace_back(lines_of(description)).size());
  }
  for (auto& model : models) model.resize(longest, {"nothing", ""});
  for (std::size_t at = 0; at < longest; ++at) {
    const Line& first = models.front()[at];
    const auto all = [&](auto is_so) {
      return std::ranges::all_of(models, [&](const auto& model) { return is_so(model[at]); });
    };
    if (all([&](const Line& line) { return line == first; })) continue;
    const bool is_same_name = all([&](const Line& line) { return line.name == first.name; });
    std::vector<std::string> things(models.size());
    std::ranges::transform(models, things.begin(), [&](const auto& model) {
      return is_same_name ? model[at].what : model[at].name;
    });
    if (is_same_name) return std::string(first.name) + " is " + by_rank(things);
    return "number " + std::to_string(at + 1) + " of the parameters and buffers is " +
           by_rank(things);
  }
  return {};
}

}  // namespace ddprun
