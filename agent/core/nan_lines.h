// Which reports of a NaN are told: in data-parallel training all ranks report it at the same step. Of each name one line at
// a time: the next one follows at a later step, when the rank of the last one has reported another value, or has ended.
// A value; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace ddprun::agent {

class NanLines {
 public:
  static constexpr std::size_t kNamesMax = 64;

  // `still`: whether the latest report of that rank has a NaN by this name.
  bool is_told(const std::string& name, int rank, std::int64_t step,
               const std::function<bool(int rank)>& still) {
    const auto told = told_.find(name);
    if (told != told_.end() && told->second.rank != rank &&
        (step <= told->second.step || still(told->second.rank))) {
      return false;
    }
    if (told == told_.end() && told_.size() >= kNamesMax) return false;
    told_.insert_or_assign(name, Told{rank, step});
    return true;
  }

 private:
  struct Told {
    int rank = 0;
    std::int64_t step = 0;
  };
  std::map<std::string, Told> told_;  // by name: the last line
};

}  // namespace ddprun::agent
