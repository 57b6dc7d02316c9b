// Which reports of a NaN are told: in data-parallel training all ranks report it at the same step. Of each name one line at
// a time: the next one follows when the rank of the last one has reported another value, or has ended. A value; pure.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

namespace ddprun::agent {

class NanLines {
 public:
  static constexpr std::size_t kNamesMax = 64;

  // `still`: whether the latest report of that rank has a NaN by this name.
  bool is_told(const std::string& name, int rank, const std::function<bool(int rank)>& still) {
    const auto told = told_.find(name);
    if (told != told_.end() && told->second != rank && still(told->second)) return false;
    if (told == told_.end() && told_.size() >= kNamesMax) return false;
    told_.insert_or_assign(name, rank);
    return true;
  }

 private:
  std::map<std::string, int> told_;  // by name: the rank of the last line
};

}  // namespace ddprun::agent
