// The nodes of the job, the state of their connections, and the order of the group of a round. A
// value of the RoundCore, which reports events to it and decides when a group is formed.
//
// The order of ranks: a node that asks for a rank gets it if that leaves no gap; nodes that ask are
// sorted by the rank that they ask for (equal ones by arrival). The others fill the gaps: survivors
// of the last group in their old order, then newcomers in the natural order of their host names
// (node2 before node10). Nodes beyond a full group are spares.
//
// group() is the group as it was formed last; nodes of it may be gone. That is why a loss costs
// only O(log n).
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

class Membership {
 public:
  explicit Membership(int max_nodes) : max_nodes_(static_cast<std::size_t>(max_nodes)) {}

  void add(NodeId id, NodeHello hello);
  void remove(NodeId id);
  bool has(NodeId id) const { return nodes_.contains(id); }
  const NodeHello& hello_of(NodeId id) const { return nodes_.at(id).hello; }
  bool is_empty() const { return nodes_.empty(); }
  int count() const { return static_cast<int>(nodes_.size()); }
  // How many nodes could form a group now. A node that was in no group yet counts only while it is
  // connected.
  int ready() const { return static_cast<int>(nodes_in_group_) + connected_outsiders_; }
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

  int form_group();  // returns how many nodes were not in the group before
  const std::vector<NodeId>& group() const { return group_; }  // by group rank
  // One for each node of the group, in its order: `start` has the fields that are equal on all nodes
  // (round, port, budget, what has changed); ranks, offsets, sizes and MASTER_ADDR are filled in.
  std::vector<std::pair<NodeId, RoundStart>> round_starts(RoundStart start) const;
  int world_size() const;  // of the group, in workers
  bool is_in_group(NodeId id) const;
  int rank_of(NodeId id) const { return nodes_.at(id).group_rank; }  // in the group formed last
  int first_worker_of(NodeId id) const { return nodes_.at(id).rank_offset; }  // likewise: its rank
  bool has_room() const { return nodes_in_group_ < max_nodes_; }
  bool has_connected_outsider() const { return connected_outsiders_ > 0; }

 private:
  struct Node {
    NodeHello hello;
    std::optional<CoreTime> broken_since;
    int group_rank = -1;  // not in the group
    int rank_offset = 0;  // of its workers, if it is
  };

  std::size_t max_nodes_;
  std::map<NodeId, Node> nodes_;  // in the order of arrival
  std::set<std::pair<CoreTime, NodeId>> broken_;
  std::multimap<int, NodeId> claims_;
  std::vector<NodeId> group_;
  std::size_t nodes_in_group_ = 0;  // the present nodes of group_
  int connected_outsiders_ = 0;     // not in the group, and ready to be
};

// Compares numbers within names as numbers: node2 comes before node10.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace ddprun::rdzv
