// The replacements in place of one round: which nodes can take part, the generation, and the
// replacement that is under way, which is over when all nodes have regrouped in the last generation.
// A value of the RoundCore, which tells the nodes what is decided here.
//
//   event \ state        none is under way     one is under way
//   WorkersRecover       note                  note
//   WorkerReplaceable    replace (1), or stop  the next generation (1); else stop after the first failure (2)
//   Regrouped            ignore                of the last generation: count; of all nodes: none is under way
//   CannotRegroup        ignore                of the last generation, from a node that is awaited: stop (2)
//   workers end with 0   ignore                on a node that is awaited: stop (2)
//   WorkerFailed         stop                  stop (2)
//   its time is over     never                 stop (2)
//
//   (1) only if every node is connected and has said WorkersRecover, no worker has ended with 0, the failed one had
//       committed a step and has a standby, another rank still has the job's state, and the budget allows a restart; and
//       not if the step is poison: the rank fails again, after it has regrouped, at the step at which it was replaced
//   (2) the round is stopped for the first failure; the others are its consequences, and its restart is paid already
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
  // A rank that was replaced: as it was when it failed, and the generation that followed.
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

  // What the RoundCore knows beside this value.
  struct Situation {
    std::size_t nodes = 0;
    int world_size = 0;
    bool are_all_connected = false;  // else the failure may be a consequence of a loss
    bool are_some_done = false;
    bool allows_restart = false;  // budget and rules, for this failure
  };
  // Why all are restarted instead; null: the worker is replaced.
  const char* why_not(const WorkerReplaceable& failed, const Situation& now) const {
    if (!failed.has_standby) return "no prepared standby waits for its rank";
    if (now.are_some_done) return "a worker has ended with 0, and comes to no generation";
    if (failed.committed <= 0) return "its first step was not committed";
    if (!now.are_all_connected) return "a node may be lost, and the failure its consequence";
    if (can_recover.size() != now.nodes) return "not all workers can recover";
    if (std::cmp_equal(without_state(failed).size(), now.world_size)) {
      return "no rank has the state of the job any more";
    }
    return now.allows_restart ? nullptr : "the budget and its rules allow no restart";
  }

  // Ranks whose places are taken by processes that need the state from another rank, with this one. A rank that died in
  // the last generation had come there together with all others, which have the state since. If one of these has not
  // come yet, it will find no rank with the state, and the round is stopped then.
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

  // That node has not regrouped yet.
  bool awaits(NodeId node) const { return under_way && !under_way->regrouped.contains(node); }
};

}  // namespace ddprun::rdzv
