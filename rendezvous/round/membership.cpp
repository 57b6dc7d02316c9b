#include "rendezvous/round/membership.h"

#include <algorithm>
#include <string>

namespace ddprun::rdzv {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Removes the number at the front of `text` and returns it without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end =
      static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin());
  std::string_view number = text.substr(0, end);
  text.remove_prefix(end);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const auto number_a = take_number(a);
      const auto number_b = take_number(b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::size_t* Membership::place_of(const Node& node) {
  if (node.group_rank >= 0) return &counts_of(node).in_group;
  return node.broken_since ? nullptr : &counts_of(node).outsiders;
}

template <typename Edit>
void Membership::recount(Node& node, Edit edit) {
  if (std::size_t* const place = place_of(node)) *place -= 1;
  edit(node);
  if (std::size_t* const place = place_of(node)) *place += 1;
}

void Membership::add(NodeId id, NodeHello hello) {
  if (hello.node_rank) claims_.emplace(*hello.node_rank, id);
  nodes_.emplace(id, Node{std::move(hello), {}, -1});
  usable_.outsiders += 1;
}

void Membership::remove(NodeId id) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const Node& node = found->second;
  if (node.broken_since) broken_.erase({*node.broken_since, id});
  if (std::size_t* const place = place_of(node)) *place -= 1;
  if (node.hello.node_rank) {
    auto [claim, end] = claims_.equal_range(*node.hello.node_rank);
    while (claim->second != id) ++claim;
    claims_.erase(claim);
  }
  nodes_.erase(found);
}

void Membership::set_standing(NodeId id, Standing standing) {
  recount(nodes_.at(id), [standing](Node& node) { node.standing = standing; });
}

std::vector<NodeId> Membership::to_spare() const {
  if (out_.in_group <= needed()) return {};
  const std::set<NodeId> chosen = choose();
  std::vector<NodeId> spared;
  for (const NodeId id : group_) {
    if (is_in_group(id) && is_out(id) && !chosen.contains(id)) spared.push_back(id);
  }
  return spared;
}

std::vector<NodeId> Membership::all() const {
  std::vector<NodeId> ids;
  ids.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) ids.push_back(id);
  return ids;
}

bool Membership::is_in_group(NodeId id) const {
  const auto found = nodes_.find(id);
  return found != nodes_.end() && found->second.group_rank >= 0;
}

void Membership::disconnected(NodeId id, CoreTime now) {
  Node& node = nodes_.at(id);
  if (node.broken_since) return;
  recount(node, [now](Node& its) { its.broken_since = now; });
  broken_.emplace(now, id);
}

void Membership::resumed(NodeId id) {
  Node& node = nodes_.at(id);
  if (!node.broken_since) return;
  broken_.erase({*node.broken_since, id});
  recount(node, [](Node& its) { its.broken_since.reset(); });
}

std::optional<Membership::Broken> Membership::longest_broken() const {
  if (broken_.empty()) return {};
  return Broken{broken_.begin()->first, broken_.begin()->second};
}

std::optional<NodeId> Membership::connected_claimant(int node_rank) const {
  const auto [begin, end] = claims_.equal_range(node_rank);
  const auto found = std::find_if(
      begin, end, [this](const auto& claim) { return !nodes_.at(claim.second).broken_since; });
  if (found == end) return {};
  return found->second;
}

std::optional<NodeId> Membership::broken_claimant(int node_rank) const {
  for (const auto& [since, id] : broken_) {
    if (nodes_.at(id).hello.node_rank == node_rank) return id;
  }
  return {};
}

std::set<NodeId> Membership::choose() const {
  std::set<NodeId> chosen;
  const auto take = [&](Standing standing, std::size_t most) {
    const auto take_one = [&](NodeId id, const Node& node) {
      if (node.standing == standing && chosen.size() < most) chosen.insert(id);
    };
    for (const NodeId id : group_) {
      if (is_in_group(id)) take_one(id, nodes_.at(id));
    }
    for (const auto& [id, node] : nodes_) {
      if (node.group_rank < 0 && !node.broken_since) take_one(id, node);
    }
  };
  take(Standing::kFit, max_nodes_);
  take(Standing::kBlamed, max_nodes_);
  take(Standing::kDrained, min_nodes_);
  take(Standing::kUnfit, min_nodes_);
  return chosen;
}

Membership::Change Membership::form_group() {
  std::set<NodeId> rest = choose();
  std::vector<NodeId> chosen;  // survivors in their order, then newcomers
  Change change;
  for (const NodeId id : group_) {
    if (!is_in_group(id)) continue;
    if (rest.erase(id) > 0) {
      chosen.push_back(id);
    } else {
      change.left_out.push_back(id);
      recount(nodes_.at(id), [](Node& node) { node.group_rank = -1; });
    }
  }
  const auto survivors = static_cast<std::ptrdiff_t>(chosen.size());
  change.joined = static_cast<int>(rest.size());
  chosen.insert(chosen.end(), rest.begin(), rest.end());
  std::stable_sort(chosen.begin() + survivors, chosen.end(), [this](NodeId a, NodeId b) {
    return natural_less(hello_of(a).host, hello_of(b).host);
  });

  const auto middle = std::stable_partition(chosen.begin(), chosen.end(), [this](NodeId id) {
    return hello_of(id).node_rank.has_value();
  });
  std::stable_sort(chosen.begin(), middle, [this](NodeId a, NodeId b) {
    return std::pair(*hello_of(a).node_rank, a) < std::pair(*hello_of(b).node_rank, b);
  });
  group_.clear();
  auto asking = chosen.begin();
  auto other = middle;
  int workers = 0;
  while (asking != middle || other != chosen.end()) {
    const int rank = static_cast<int>(group_.size());
    const bool takes_it =
        asking != middle && (other == chosen.end() || *hello_of(*asking).node_rank <= rank);
    const NodeId id = takes_it ? *asking++ : *other++;
    Node& node = nodes_.at(id);
    recount(node, [rank](Node& its) { its.group_rank = rank; });
    node.rank_offset = workers;
    workers += node.hello.local_world_size;
    group_.push_back(id);
  }
  return change;
}

int Membership::world_size() const {
  int workers = 0;
  for (const NodeId id : group_) workers += hello_of(id).local_world_size;
  return workers;
}

std::vector<std::pair<NodeId, RoundStart>> Membership::round_starts(RoundStart start) const {
  start.node_count = static_cast<int>(group_.size());
  start.master_addr = hello_of(group_.front()).address;
  start.world_size = world_size();
  struct Role {
    int size = 0;
    int offset = 0;
  };
  std::map<std::string, Role> roles;
  for (const NodeId id : group_) {
    const NodeHello& hello = hello_of(id);
    roles[hello.role].size += hello.local_world_size;
  }
  std::vector<std::pair<NodeId, RoundStart>> starts;
  starts.reserve(group_.size());
  for (const NodeId id : group_) {
    const NodeHello& hello = hello_of(id);
    Role& role = roles[hello.role];
    start.role_rank_offset = role.offset;
    start.role_world_size = role.size;
    starts.emplace_back(id, start);
    start.node_rank += 1;
    start.rank_offset += hello.local_world_size;
    role.offset += hello.local_world_size;
  }
  return starts;
}

}  // namespace ddprun::rdzv
