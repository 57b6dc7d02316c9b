// How far the workers of this node are with the replacements in place of one round. A value of the NodeCore.
//
//   event \ workers      all in the last generation   some are awaited (1)            one is dead (2)
//   died                 it is dead                   it is dead                      it is dead, too
//   ReplaceWorker (3)    all are awaited              all are awaited                 of its rank: it lives; all are awaited
//   regrouped (4)        drop                         the last one: tell Regrouped    note
//   cannot regroup       note                         tell CannotRegroup if awaited   tell CannotRegroup if awaited
//   not replaced         -                            -                               none is dead
//
//   (1) live workers that have not regrouped in the last generation
//   (2) the leader has not decided yet whether it is replaced
//   (3) a generation that is not later than the last one is dropped
//   (4) in another generation than the last one: drop
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun::agent {

class Regrouping {
 public:
  explicit Regrouping(std::size_t workers = 0) : workers_(workers) {}

  void died(int rank, int local_rank) { dead_[rank] = local_rank; }
  bool has_dead() const { return !dead_.empty(); }
  // The dead ones are not replaced: their local ranks by rank.
  std::map<int, int> not_replaced() { return std::exchange(dead_, {}); }

  // The dead worker that lives again, if it is of this node; outer nullopt: a generation of the past.
  std::optional<std::optional<int>> replace(std::uint32_t generation, int rank) {
    if (generation <= generation_) return {};
    generation_ = generation;
    const auto dead = dead_.extract(rank);
    if (!dead) return std::optional<int>{};
    workers_.at(static_cast<std::size_t>(dead.mapped())).cannot = false;
    return std::optional(dead.mapped());
  }

  // Whether all are in the last generation with this one.
  bool regrouped(int local_rank, std::uint32_t generation) {
    auto& its = workers_.at(static_cast<std::size_t>(local_rank)).generation;
    if (generation != generation_ || std::exchange(its, generation) == generation) return false;
    return dead_.empty() && std::ranges::all_of(workers_, [this](const Worker& worker) {
             return worker.generation == generation_;
           });
  }

  void cannot(int local_rank) { workers_.at(static_cast<std::size_t>(local_rank)).cannot = true; }
  bool awaits_in_vain(const std::vector<bool>& has_ended) const {
    return std::ranges::any_of(awaited(has_ended), [this](int local_rank) {
      return workers_[static_cast<std::size_t>(local_rank)].cannot;
    });
  }

  std::vector<int> awaited(const std::vector<bool>& has_ended) const {
    std::vector<int> local_ranks;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (!has_ended[i] && workers_[i].generation != generation_) {
        local_ranks.push_back(static_cast<int>(i));
      }
    }
    return local_ranks;
  }
  std::uint32_t generation() const { return generation_; }

 private:
  struct Worker {
    std::uint32_t generation = 0;  // in which it has regrouped last
    bool cannot = false;           // regroup: it has left its loop of steps
  };
  std::vector<Worker> workers_;  // by local rank
  std::map<int, int> dead_;      // local ranks, by rank
  std::uint32_t generation_ = 0;
};

}  // namespace ddprun::agent
