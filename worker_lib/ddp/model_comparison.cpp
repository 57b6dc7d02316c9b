#include "worker_lib/ddp/model_comparison.h"

#include <algorithm>
#include <optional>

namespace ddprun {
namespace {

struct Line {
  std::string_view name, what;
  bool operator==(const Line& other) const { return name == other.name && what == other.what; }
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

// "rank 3", "ranks 0-2, 5"
std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i;
    while (end + 1 < ranks.size() && ranks[end + 1] == ranks[end] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (end > i) text += "-" + std::to_string(ranks[end]);
    i = end + 1;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

// "A on rank 0 and B on ranks 1-3": what the ranks have, each different thing once.
std::string by_rank(const std::vector<std::string>& things) {
  std::string text;
  std::vector<bool> is_told(things.size(), false);
  for (std::size_t rank = 0; rank < things.size(); ++rank) {
    if (is_told[rank]) continue;
    std::vector<std::size_t> ranks;
    for (std::size_t other = rank; other < things.size(); ++other) {
      if (things[other] != things[rank]) continue;
      is_told[other] = true;
      ranks.push_back(other);
    }
    text += (text.empty() ? "" : " and ") + things[rank] + " on " + ranks_text(ranks);
  }
  return text;
}

}  // namespace

std::uint64_t fingerprint(std::string_view description) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : description) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

std::string first_difference(const std::vector<std::string>& descriptions) {
  std::vector<std::vector<Line>> models;
  std::size_t longest = 0;
  for (const auto& description : descriptions) {
    models.push_back(lines_of(description));
    longest = std::max(longest, models.back().size());
  }
  for (std::size_t at = 0; at < longest; ++at) {
    const auto line_of = [&](const std::vector<Line>& model) {
      return at < model.size() ? std::optional(model[at]) : std::nullopt;
    };
    const auto first = line_of(models.front());
    if (std::all_of(models.begin(), models.end(),
                    [&](const auto& model) { return line_of(model) == first; })) {
      continue;
    }
    const bool is_same_name = std::all_of(models.begin(), models.end(), [&](const auto& model) {
      const auto line = line_of(model);
      return line && first && line->name == first->name;
    });
    std::vector<std::string> things;
    for (const auto& model : models) {
      const auto line = line_of(model);
      if (!line) {
        things.emplace_back("nothing");
      } else {
        things.emplace_back(is_same_name ? line->what : line->name);
      }
    }
    if (is_same_name) return std::string(first->name) + " is " + by_rank(things);
    return "number " + std::to_string(at + 1) + " of the parameters and buffers is " +
           by_rank(things);
  }
  return {};
}

}  // namespace ddprun
