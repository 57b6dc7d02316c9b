// The replacements in place of one round: which nodes can take part, the generation, and the
// replacement that is under way, which is over when all nodes have regrouped in the last generation.
// A value of the RoundCore, which decides whether a worker is replaced.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

struct Replacements {
  struct UnderWay {
    WorkerFailure cause;  // the first one; if the round must be stopped, it is stopped for this one
    NodeId cause_node{};
    std::vector<WorkerFailure> others;  // that came meanwhile, each with a generation of its own
    std::set<NodeId> regrouped;         // in the last generation
    std::set<int> without_state;  // ranks whose state has died, and may not have been given anew
    CoreTime until;
  };
  // Of a rank that was replaced: as it was when it failed, and the generation that followed.
  struct Last {
    std::int64_t committed = 0;
    std::uint32_t generation = 0;
  };

  std::set<NodeId> can_recover;  // nodes of which all workers can
  std::uint32_t generation = 0;  // the last one
  std::map<int, Last> last;      // by rank
  std::optional<UnderWay> under_way;

  // The worker came back after its last failure, and fails at the same step again. If others fail at
  // the same time, it may be their fault.
  bool is_poison(const WorkerReplaceable& failed) const {
    const bool is_alone =
        !under_way || (under_way->cause.rank == failed.failure.rank && under_way->others.empty());
    const auto before = last.find(failed.failure.rank);
    return is_alone && before != last.end() && before->second.committed == failed.committed &&
           failed.generation >= before->second.generation;
  }

  // Ranks whose places are taken by processes that need the state from another rank, with this one. Who died in the
  // last generation had come there together with all others, who have the state since: one that has not yet will
  // find nobody who has it, and the round is stopped then.
  std::set<int> without_state(const WorkerReplaceable& failed) const {
    std::set<int> ranks;
    if (under_way && failed.generation != generation) ranks = under_way->without_state;
    ranks.insert(failed.failure.rank);
    return ranks;
  }

  void begin(NodeId node, const WorkerReplaceable& failed, CoreTime until) {
    auto ranks = without_state(failed);
    generation += 1;
    last[failed.failure.rank] = {failed.committed, generation};
    if (!under_way) {
      under_way = UnderWay{failed.failure, node, {}, {}, std::move(ranks), until};
      return;
    }
    under_way->without_state = std::move(ranks);
    under_way->others.push_back(failed.failure);
    under_way->regrouped.clear();
    under_way->until = until;
  }

  // `nodes`: how many the round has.
  void regrouped(NodeId node, std::uint32_t in, std::size_t nodes) {
    if (!under_way || in != generation) return;
    under_way->regrouped.insert(node);
    if (under_way->regrouped.size() == nodes) under_way.reset();
  }

  // To regroup.
  bool awaits(NodeId node) const { return under_way && !under_way->regrouped.contains(node); }
};

}  // namespace ddprun::rdzv
