#include "worker_lib/shm/shm_join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace ddprun::shm {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// In what two identities of one machine differ: "mount namespace".
std::string difference(const std::string& one, const std::string& other) {
  const auto mine = lines_of(one);
  const auto theirs = lines_of(other);
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()); ++i) {
    if (mine[i] != theirs[i]) return mine[i].substr(0, mine[i].find('='));
  }
  return "version";
}

std::vector<std::string> keys_of(const char* what, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(std::string(what) + "/" + std::to_string(i));
  }
  return keys;
}

// What follows a rank's identity in the store: the address of its door, or why it has none.
constexpr std::string_view kDoor = "door=";
constexpr std::string_view kNoDoor = "none: ";

class Joiner {
 public:
  Joiner(const Joining& joining, const std::shared_ptr<PeerWatch>& watch)
      : joining_(joining), watch_(watch) {}

  Result<Joined> join() {
    const auto door = Door::open();
    introduce(door);
    Joined joined;
    joined.placement = placement_of(identities_, joining_.global_ranks);
    if (!joined.placement.why_not.empty()) {
      return fail(ErrorCode::kUnavailable, joined.placement.why_not);
    }
    if (!joined.placement.has_neighbours()) return joined;
    for (std::size_t rank = 0; rank < doors_.size(); ++rank) {
      if (!doors_[rank].starts_with(kNoDoor)) continue;
      return fail(ErrorCode::kUnavailable, by_rank(rank, doors_[rank].substr(kNoDoor.size())));
    }
    for (const auto& node : joined.placement.nodes) {
      if (node.size() <= kMostRanks) continue;
      return fail(ErrorCode::kResourceExhausted,
                  "more than " + std::to_string(kMostRanks) + " ranks on a node");
    }
    auto node = join_node(*door, joined.placement.node_of(joining_.rank));
    if (auto well = hear_of_nodes(joined.placement.nodes, node); !well) return fail(well.error());
    if (!node) return fail(std::move(node.error()));
    joined.node = std::move(*node);
    return joined;
  }

 private:
  void introduce(const Result<Door>& door) {
    const auto keys = keys_of("who", joining_.global_ranks.size());
    const std::string own = door ? door->address() : std::string(kNoDoor) + door.error().message;
    joining_.exchange.set(keys[static_cast<std::size_t>(joining_.rank)],
                          joining_.identity + std::string(kDoor) + own);
    for (const std::string& said : joining_.exchange.get(keys)) {
      const std::size_t end = std::min(said.rfind(kDoor), said.size());
      identities_.push_back(said.substr(0, end));
      doors_.push_back(said.substr(std::min(end + kDoor.size(), said.size())));
    }
  }

  // Whatever comes, every rank of the node says what came of it, and hears the same of all.
  Result<std::shared_ptr<NodeGroup>> join_node(const Door& door, const std::vector<int>& members) {
    // Who is alone on its node has no use for more than what there has to be.
    const std::size_t bytes = members.size() == 1 ? 0 : joining_.bytes_per_rank;
    const int size = static_cast<int>(members.size());
    const Geometry geometry = geometry_for(size, bytes);
    const auto at = std::find(members.begin(), members.end(), joining_.rank);
    const int place = static_cast<int>(at - members.begin());
    std::optional<Result<Segment>> made;
    if (place == 0) made.emplace(Segment::make(geometry));
    auto circle = place == 0 ? Circle::host(door, size, joining_.until)
                             : Circle::visit(doors_[static_cast<std::size_t>(members[0])], place,
                                             joining_.until);
    if (!circle) return fail(std::move(circle.error()));
    auto segment = made ? hand_out(*circle, std::move(*made)) : fetch(*circle, geometry);
    if (segment) {
      if (auto ok = segment->touch(place); !ok) segment = fail(std::move(ok.error()));
    }
    if (segment) announce(*segment, place);
    if (auto ok = all_have(segment, *circle); !ok) return fail(std::move(ok.error()));
    std::vector<int> global_ranks;
    for (const int member : members) {
      global_ranks.push_back(joining_.global_ranks[static_cast<std::size_t>(member)]);
    }
    auto node = NodeGroup::make(std::make_shared<Segment>(std::move(*segment)), place,
                                std::move(global_ranks), watch_);
    if (auto ok = all_have(node, *circle); !ok) return fail(std::move(ok.error()));
    return node;
  }

  static Result<Segment> hand_out(Circle& circle, Result<Segment> segment) {
    const rdzv::UniqueFd none;
    auto given = circle.give(segment ? segment->memory() : none);
    if (segment && !given) return fail(std::move(given.error()));
    return segment;
  }

  static Result<Segment> fetch(Circle& circle, const Geometry& geometry) {
    auto memory = circle.take();
    if (!memory) return fail(std::move(memory.error()));
    return Segment::map(std::move(*memory), geometry);
  }

  // An error on all ranks of the node when one of them has one.
  template <typename T>
  Result<void> all_have(const Result<T>& own, Circle& circle) const {
    const std::string trouble =
        own ? "" : by_rank(static_cast<std::size_t>(joining_.rank), own.error().to_string());
    auto first = circle.agree(trouble);
    if (!first) return fail(std::move(first.error()));
    if (!first->empty()) return fail(ErrorCode::kUnavailable, std::move(*first));
    return {};
  }

  // Fails everywhere with the words of the first node that has failed.
  Result<void> hear_of_nodes(const std::vector<std::vector<int>>& nodes,
                             const Result<std::shared_ptr<NodeGroup>>& own) {
    if (nodes.size() == 1) return {};
    const auto keys = keys_of("well", nodes.size());
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      if (nodes[node].front() != joining_.rank) continue;
      joining_.exchange.set(keys[node], own ? "" : own.error().to_string());
    }
    for (const std::string& words : joining_.exchange.get(keys)) {
      if (!words.empty()) return fail(ErrorCode::kUnavailable, words);
    }
    return {};
  }

  std::string by_rank(std::size_t rank, const std::string& words) const {
    return "rank " + std::to_string(joining_.global_ranks[rank]) + ": " + words;
  }

  const Joining& joining_;
  const std::shared_ptr<PeerWatch>& watch_;
  std::vector<std::string> identities_;
  std::vector<std::string> doors_;
};

}  // namespace

std::string identity_of_this_process(int node) {
  std::ostringstream text;
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  text << "machine=" << boot << " node " << node << "\n";
  constexpr std::pair<const char*, const char*> kSpaces[] = {
      {"user", "/proc/self/ns/user"},
      {"mount", "/proc/self/ns/mnt"},
      {"process", "/proc/self/ns/pid"},
      {"network", "/proc/self/ns/net"},
  };
  for (const auto& [name, path] : kSpaces) {
    struct stat found {};
    const bool is_there = ::stat(path, &found) == 0;
    text << name << " namespace=" << (is_there ? found.st_ino : 0) << "\n";
  }
  text << "user=" << ::geteuid() << "\nversion=" << kVersion << "\n";
  return text.str();
}

const std::vector<int>& Placement::node_of(int rank) const {
  return *std::find_if(nodes.begin(), nodes.end(), [rank](const std::vector<int>& members) {
    return std::find(members.begin(), members.end(), rank) != members.end();
  });
}

std::size_t Placement::members() const {
  std::size_t count = 0;
  for (const auto& node : nodes) count += node.size();
  return count;
}

Placement placement_of(const std::vector<std::string>& identities,
                       const std::vector<int>& global_ranks) {
  Placement placement;
  const auto machine = [&](std::size_t rank) {
    return identities[rank].substr(0, identities[rank].find('\n'));
  };
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    std::optional<std::size_t> at;
    for (std::size_t node = 0; node < placement.nodes.size() && !at; ++node) {
      const auto first = static_cast<std::size_t>(placement.nodes[node].front());
      if (machine(first) != machine(rank)) continue;
      if (identities[first] != identities[rank]) {
        placement.why_not = "ranks " + std::to_string(global_ranks[first]) + " and " +
                            std::to_string(global_ranks[rank]) +
                            " are on one machine but not of one " +
                            difference(identities[first], identities[rank]);
        return placement;
      }
      at = node;
    }
    if (!at) {
      at = placement.nodes.size();
      placement.nodes.emplace_back();
    }
    placement.nodes[*at].push_back(static_cast<int>(rank));
  }
  return placement;
}

Result<Joined> join(const Joining& joining, const std::shared_ptr<PeerWatch>& watch) {
  return Joiner(joining, watch).join();
}

}  // namespace ddprun::shm
