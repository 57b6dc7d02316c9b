// The nodes of the job, the state of their connections, and the order of the group of a round. A
// value of the RoundCore, which reports events to it and decides when a group is formed.
//
// The order of ranks: a node that asks for a rank gets it if that leaves no gap; nodes that ask are
// sorted by the rank that they ask for (equal ones by arrival). The others fill the gaps: survivors
// of the last group in their old order, then newcomers in the natural order of their host names
// (node2 before node10). Nodes beyond a full group are spares.
//
// Fit nodes are taken first, survivors before others; then those that are blamed for failures. Drained
// and unfit ones are taken only if all these are fewer than the minimum, and only as many as are missing.
//
// group() is the group as it was formed last; nodes of it may be gone. That is why a loss costs
// only O(log n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/left_out.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

class Membership {
 public:
  Membership(int min_nodes, int max_nodes)
      : min_nodes_(static_cast<std::size_t>(min_nodes)),
        max_nodes_(static_cast<std::size_t>(max_nodes)) {}

  void add(NodeId id, NodeHello hello);
  void remove(NodeId id);
  bool has(NodeId id) const { return nodes_.contains(id); }
  const NodeHello& hello_of(NodeId id) const { return nodes_.at(id).hello; }
  bool is_empty() const { return nodes_.empty(); }
  int count() const { return static_cast<int>(nodes_.size()); }
  // How many nodes could form a group now. A node that was in no group yet counts only while it is
  // connected.
  int ready() const { return usable() + static_cast<int>(std::min(needed(), out_.ready())); }
  int usable() const {
    return static_cast<int>(usable_.ready());
  }  // without drained and unfit ones
  std::vector<NodeId> all() const;

  // The connection of a present node broke.
  void disconnected(NodeId id, CoreTime now);
  void resumed(NodeId id);
  bool is_connected(NodeId id) const { return !nodes_.at(id).broken_since; }
  struct Broken {
    CoreTime since;
    NodeId id;
  };
  std::optional<Broken> longest_broken() const;

  // The connected node that has asked for this rank.
  std::optional<NodeId> connected_claimant(int node_rank) const;
  std::optional<NodeId> broken_claimant(int node_rank) const;

  // A node stays in a group that is formed already.
  void set_standing(NodeId id, Standing standing);
  Standing standing(NodeId id) const { return nodes_.at(id).standing; }
  bool is_out(NodeId id) const { return is_out(nodes_.at(id)); }
  // The drained and unfit nodes of the group that it can do without.
  std::vector<NodeId> to_spare() const;

  struct Change {
    int joined = 0;                // nodes that were not in the group before
    std::vector<NodeId> left_out;  // present nodes that were
  };
  Change form_group();
  const std::vector<NodeId>& group() const { return group_; }  // by group rank
  // One for each node of the group, in its order: `start` has the fields that are equal on all nodes
  // (round, port, budget, what has changed); ranks, offsets, sizes and MASTER_ADDR are filled in.
  std::vector<std::pair<NodeId, RoundStart>> round_starts(RoundStart start) const;
  int world_size() const;  // of the group, in workers
  bool is_in_group(NodeId id) const;
  int rank_of(NodeId id) const { return nodes_.at(id).group_rank; }  // in the group formed last
  int first_worker_of(NodeId id) const { return nodes_.at(id).rank_offset; }  // likewise: its rank
  bool has_room() const { return usable_.in_group + out_.in_group < max_nodes_; }
  // That may come in.
  bool has_connected_outsider() const { return usable_.outsiders > 0; }

 private:
  struct Node {
    NodeHello hello;
    std::optional<CoreTime> broken_since;
    int group_rank = -1;  // not in the group
    int rank_offset = 0;  // of its workers, if it is
    Standing standing = Standing::kFit;
  };
  struct Counts {
    std::size_t in_group = 0;   // the present nodes of group_
    std::size_t outsiders = 0;  // connected, not in the group, and ready to be
    std::size_t ready() const { return in_group + outsiders; }
  };

  static bool is_out(const Node& node) { return node.standing >= Standing::kDrained; }
  Counts& counts_of(const Node& node) { return is_out(node) ? out_ : usable_; }
  // The place in the counts that the node has; null: it is outside and not connected.
  std::size_t* place_of(const Node& node);
  // Makes a change that may give the node another place in the counts.
  template <typename Edit>
  void recount(Node& node, Edit edit);
  // How many of the drained and unfit nodes cannot be spared.
  std::size_t needed() const { return min_nodes_ - std::min(min_nodes_, usable_.ready()); }
  std::set<NodeId> choose() const;

  std::size_t min_nodes_;
  std::size_t max_nodes_;
  std::map<NodeId, Node> nodes_;  // in the order of arrival
  std::set<std::pair<CoreTime, NodeId>> broken_;
  std::multimap<int, NodeId> claims_;
  std::vector<NodeId> group_;
  Counts usable_;
  Counts out_;  // drained or unfit
};

// Compares numbers within names as numbers: node2 comes before node10.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace ddprun::rdzv
