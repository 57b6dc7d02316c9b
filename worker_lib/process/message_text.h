// Parts of messages. Pure; any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <sstream>
#include <string>
#include <vector>

namespace ddprun {

// "0.25 s"
inline std::string seconds_text(std::chrono::duration<double> time) {
  std::ostringstream text;
  text.precision(3);
  text << time.count() << " s";
  return text.str();
}

// "2", "2 and 5", "0, 1, 2 and 30 more"
template <typename Thing>
std::string listed(const std::vector<Thing>& things, std::size_t most = 8) {
  std::ostringstream text;
  const std::size_t named = std::min(things.size(), most);
  for (std::size_t i = 0; i < named; ++i) {
    text << (i == 0 ? "" : i + 1 == things.size() ? " and " : ", ") << things[i];
  }
  if (named < things.size()) text << " and " << things.size() - named << " more";
  return text.str();
}

// "rank 2", "ranks 2 and 5"
inline std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + listed(ranks);
}

}  // namespace ddprun
