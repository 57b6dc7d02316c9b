// Decides about the replacement in place of this node's workers (agent/README.md, "Replacement in place"): whether the
// node can recover, which dead worker may be replaced, and when a generation is over here. A pure value: Workers
// passes in what processes and links say at that moment, and acts upon the answers.
//
//   what happens             what follows
//   round_begins             every rank has a new worker, which has said nothing; no generation has begun
//   round_stops              no worker is replaced any more, and no death is reported early
//   hello, it can recover    its death is watched; when all workers of the node can: the leader hears it, once a round
//   hello, it cannot; or a   if it could before: the leader hears that this worker comes to no generation
//     refusal
//   failed                   replaceable, with a standby, if: one waits for this rank, the worker has left its mirror, and
//                            every other worker of the node takes part, is dying, or has ended.
//                            Else replaceable, without a standby, if it is a newcomer that has not refused: its failure
//                            belongs to the generation in which it took the place. Else not replaceable
//   replaced                 a generation begins: every worker has to commit a step in it
//   took_place               the rank has a newcomer, which has said nothing
//   committed                when all workers of this node have: the generation is over here
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "agent/core/node_core.h"

namespace ddprun::agent {

class ReplacementCore {
 public:
  explicit ReplacementCore(int local_world_size)
      : ranks_(static_cast<std::size_t>(local_world_size)) {}

  void round_begins();
  void round_stops() { is_stopping_ = true; }

  // ---- what workers say

  struct Hello {
    bool is_watched = false;      // its death is to be watched
    bool cannot_regroup = false;  // it could before, and the leader does not know yet
    bool can_all_recover = false;
  };
  // `can_recover`: by local rank, what the last hellos say.
  Hello hello(int local_rank, const std::vector<bool>& can_recover);
  // The worker cannot recover any more. True: it could before, and the leader does not know yet.
  bool refused(int local_rank);
  // The worker has committed a step in that generation. True: the last generation is over on this node.
  bool committed(int local_rank, std::uint32_t generation);

  // ---- workers die

  // Whether a death is to be reported before the kernel has ended the process. Where all workers are restarted, this
  // saves no time.
  bool takes_early_death(bool has_standby) const { return has_standby && !is_stopping_; }
  // The process of the worker is gone, or is left to the kernel.
  void ended(int local_rank) { rank(local_rank).has_offered = false; }

  enum class Standing {
    kGone,        // its end is known
    kTakesPart,   // it comes to the next generation
    kDying,       // the kernel says so, and its end is not known yet
    kCannotCome,  // it runs, and would not come
  };
  // What the link of a dead worker says.
  struct Remains {
    bool has_mirror = false;
    bool has_refused = false;  // its end says nothing of the step that it was in
    std::int64_t committed = 0;
    std::uint32_t generation = 0;
  };
  // Whether the leader may have the worker replaced; none: it may not. `standings` of all workers, by local rank.
  std::optional<Replaceable> failed(const rdzv::WorkerFailure& failure, const Remains& remains,
                                    bool has_standby, const std::vector<Standing>& standings);

  // ---- a generation

  // It begins. If the dead worker is of this node: its failure, in case that no standby can take the place.
  std::optional<rdzv::WorkerFailure> replaced(const Replace& what);
  void took_place(int local_rank) {
    rank(local_rank) = {.committed = rank(local_rank).committed, .is_newcomer = true};
  }

  // A worker of this node has not committed a step in the last generation.
  bool is_replacing() const;
  // All workers of this node have said in this round that they can recover.
  bool could_all_recover() const { return could_all_recover_; }
  std::uint32_t generation() const { return generation_; }  // the last one; 0: none has begun

 private:
  struct Rank {
    std::uint32_t committed = 0;  // the last generation in which it has committed a step
    bool is_newcomer = false;     // it has taken the place of a dead worker in this round
    bool has_offered = false;     // to recover, and has not withdrawn that
    std::optional<rdzv::WorkerFailure> failure = {};  // the last one, if it was replaceable
  };
  Rank& rank(int local_rank) { return ranks_.at(static_cast<std::size_t>(local_rank)); }

  std::vector<Rank> ranks_;  // by local rank
  std::uint32_t generation_ = 0;
  bool could_all_recover_ = false;
  bool is_stopping_ = false;
};

}  // namespace ddprun::agent
