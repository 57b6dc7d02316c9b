// The nodes that came and may not take part, for the nodes that wait for them and for the outcome of a job that never
// had enough. A value of the RoundCore.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// The leader's shell has refused it (no token, another version), or the core has (other settings).
struct NodeTurnedAway {
  std::string host;     // empty: not known
  std::string address;  // as in NodeHello
  std::string why;
  std::optional<int> node_rank = {};  // the rank that it asks for, if it may have it

  bool operator==(const NodeTurnedAway&) const = default;
};

// "node2 (10.77.0.2)", "node rank 1 on node2 (10.77.0.2)"
inline std::string name_of(const NodeTurnedAway& node) {
  const std::string rank =
      node.node_rank ? "node rank " + std::to_string(*node.node_rank) + " on " : "";
  return rank + (node.host.empty() || node.host == node.address
                     ? node.address
                     : node.host + " (" + node.address + ")");
}

// Several nodes of one host are told apart by their ranks. Nodes of one host without a rank that are turned away for the
// same reason count as one, since a service may start the same node again and again.
class TurnedAwayNodes {
 public:
  void add(NodeTurnedAway node) {
    std::erase_if(nodes_, [&](const NodeTurnedAway& each) {
      return is_there(each, node.host, node.address) &&
             (each.host.empty() ||
              (each.node_rank == node.node_rank && (each.node_rank || each.why == node.why)));
    });
    nodes_.push_back(std::move(node));
    if (nodes_.size() > kNodesMax) nodes_.erase(nodes_.begin());
  }
  // The node came again and may take part.
  void forget(const std::string& host, const std::string& address, std::optional<int> node_rank) {
    std::erase_if(nodes_, [&](const NodeTurnedAway& each) {
      return is_there(each, host, address) &&
             (!each.node_rank || !node_rank || each.node_rank == node_rank);
    });
  }
  void clear() { nodes_.clear(); }

  // "node2 (10.77.0.2) was turned away: it asks for …"; empty: no node was.
  std::string in_words() const {
    std::string text;
    for (const NodeTurnedAway& each : nodes_) {
      text += (text.empty() ? "" : "; ") + name_of(each) + " was turned away: " + each.why;
    }
    return text;
  }

 private:
  static bool is_there(const NodeTurnedAway& node, const std::string& host,
                       const std::string& address) {
    return node.address == address && (node.host.empty() || node.host == host);
  }

  static constexpr std::size_t kNodesMax = 8;  // any host can make entries where there is no token
  std::vector<NodeTurnedAway> nodes_;          // the latest last
};

}  // namespace ddprun::rdzv
