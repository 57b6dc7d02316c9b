#include "agent/core/replacement_core.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace ddprun::agent {

void ReplacementCore::round_begins() {
  std::ranges::fill(ranks_, Rank());
  generation_ = 0;
  could_all_recover_ = false;
  is_stopping_ = false;
}

ReplacementCore::Hello ReplacementCore::hello(int local_rank,
                                              const std::vector<bool>& can_recover) {
  if (!can_recover.at(static_cast<std::size_t>(local_rank))) {
    return {.cannot_regroup = refused(local_rank)};
  }
  rank(local_rank).has_offered = true;
  const bool can_all = std::ranges::all_of(can_recover, std::identity());
  return {.is_watched = true,
          .can_all_recover = can_all && !std::exchange(could_all_recover_, true)};
}

bool ReplacementCore::refused(int local_rank) {
  return std::exchange(rank(local_rank).has_offered, false);
}

bool ReplacementCore::committed(int local_rank, std::uint32_t generation) {
  std::uint32_t& last = rank(local_rank).committed;
  last = std::max(last, std::min(generation, generation_));
  return !is_replacing();
}

std::optional<Replaceable> ReplacementCore::failed(const rdzv::WorkerFailure& failure,
                                                   const Remains& remains, bool has_standby,
                                                   const std::vector<Standing>& standings) {
  if (is_stopping_) return std::nullopt;
  Rank& its = rank(failure.local_rank);
  const bool can_all_come = std::ranges::count(standings, Standing::kCannotCome) == 0;
  const bool can_replace = remains.has_mirror && has_standby && can_all_come;
  if (!can_replace && (!its.is_newcomer || remains.has_refused)) return std::nullopt;
  its.failure = failure;
  return Replaceable{remains.committed, remains.generation, can_replace};
}

std::optional<rdzv::WorkerFailure> ReplacementCore::replaced(const Replace& what) {
  generation_ = what.generation;
  if (!what.local_rank) return std::nullopt;
  return std::exchange(rank(*what.local_rank).failure, std::nullopt).value_or(what.failure);
}

bool ReplacementCore::is_replacing() const {
  return std::ranges::any_of(ranks_,
                             [this](const Rank& each) { return each.committed < generation_; });
}

}  // namespace ddprun::agent
