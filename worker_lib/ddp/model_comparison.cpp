#include "worker_lib/ddp/model_comparison.h"

#include <algorithm>

#include "worker_lib/process/message_text.h"

namespace ddprun {
namespace {

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

std::string first_difference(std::vector<ModelDescription> models) {
  const std::size_t longest = std::ranges::max(models, {}, &ModelDescription::size).size();
  for (auto& model : models) model.resize(longest, {"nothing", ""});
  for (std::size_t at = 0; at < longest; ++at) {
    const auto& first = models.front()[at];
    const auto all = [&](auto is_so) {
      return std::ranges::all_of(models, [&](const auto& model) { return is_so(model[at]); });
    };
    if (all([&](const auto& each) { return each == first; })) continue;
    const bool is_same_name = all([&](const auto& each) { return each.first == first.first; });
    std::vector<std::string> things(models.size());
    std::ranges::transform(models, things.begin(), [&](const auto& model) {
      return is_same_name ? model[at].second : model[at].first;
    });
    if (is_same_name) return first.first + " is " + by_rank(things);
    return "number " + std::to_string(at + 1) + " of the parameters and buffers is " +
           by_rank(things);
  }
  return {};
}

}  // namespace ddprun
