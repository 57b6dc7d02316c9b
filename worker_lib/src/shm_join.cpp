#include "worker_lib/src/shm_join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
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

constexpr const char* kNoDoor = "none: ";

class Joiner {
 public:
  Joiner(const Joining& joining, const std::shared_ptr<PeerWatch>& watch)
      : joining_(joining), watch_(watch) {}

  Result<Joined> join() {
    Joined joined;
    const std::size_t size = joining_.job_ranks.size();
    const auto own = static_cast<std::size_t>(joining_.rank);
    joining_.exchange.set(keys_of("who", size)[own], joining_.identity);
    joined.placement =
        placement_of(joining_.exchange.get(keys_of("who", size)), joining_.job_ranks);
    if (!joined.placement.why_not.empty()) {
      return fail(ErrorCode::kUnavailable, joined.placement.why_not);
    }
    if (!joined.placement.has_neighbours()) return joined;
    for (const auto& node : joined.placement.nodes) {
      if (node.size() <= kMostRanks) continue;
      return fail(ErrorCode::kResourceExhausted,
                  "more than " + std::to_string(kMostRanks) + " ranks on a node");
    }
    // Whatever comes, every rank says what came of it, and hears the same of all.
    auto node = join_node(joined.placement.node_of(joining_.rank));
    joining_.exchange.set(keys_of("well", size)[own], node ? "" : node.error().to_string());
    const auto words = joining_.exchange.get(keys_of("well", size));
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (words[rank].empty()) continue;
      return fail(ErrorCode::kUnavailable,
                  "rank " + std::to_string(joining_.job_ranks[rank]) + ": " + words[rank]);
    }
    joined.node = std::move(*node);
    return joined;
  }

 private:
  Result<std::shared_ptr<NodeGroup>> join_node(const std::vector<int>& members) {
    // Who is alone on its node has no use for more than what there has to be.
    const std::size_t bytes = members.size() == 1 ? 0 : joining_.bytes_per_rank;
    const Geometry geometry = geometry_for(static_cast<int>(members.size()), bytes);
    const auto at = std::find(members.begin(), members.end(), joining_.rank);
    const int place = static_cast<int>(at - members.begin());
    auto segment = place == 0 ? make(members, geometry) : fetch(members, geometry);
    if (segment) {
      if (auto ok = segment->touch(place); !ok) segment = fail(std::move(ok.error()));
    }
    if (segment) announce(*segment, place);
    // Each tells the others of the node, so that nobody waits for one that has failed.
    std::vector<std::string> keys;
    for (const int member : members) keys.push_back("there/" + std::to_string(member));
    joining_.exchange.set(keys[static_cast<std::size_t>(place)],
                          segment ? "" : segment.error().to_string());
    const auto words = joining_.exchange.get(keys);
    if (!segment) return fail(std::move(segment.error()));
    for (const std::string& why : words) {
      if (!why.empty()) return fail(ErrorCode::kUnavailable, why);
    }
    std::vector<int> job_ranks;
    for (const int member : members) {
      job_ranks.push_back(joining_.job_ranks[static_cast<std::size_t>(member)]);
    }
    return NodeGroup::make(std::make_shared<Segment>(std::move(*segment)), place,
                           std::move(job_ranks), watch_);
  }

  static std::string door_key(const std::vector<int>& members) {
    return "door/" + std::to_string(members.front());
  }

  Result<Segment> make(const std::vector<int>& members, const Geometry& geometry) {
    auto segment = Segment::make(geometry);
    auto door = Door::open();
    if (!segment || !door) {
      Error error = !segment ? segment.error() : door.error();
      joining_.exchange.set(door_key(members), kNoDoor + error.to_string());
      return fail(std::move(error));
    }
    joining_.exchange.set(door_key(members), door->address());
    const int visitors = static_cast<int>(members.size()) - 1;
    if (auto ok = door->hand_out(segment->memory(), visitors, joining_.until); !ok) {
      return fail(std::move(ok.error()));
    }
    return segment;
  }

  Result<Segment> fetch(const std::vector<int>& members, const Geometry& geometry) {
    const std::string address = joining_.exchange.get({door_key(members)}).front();
    if (address.starts_with(kNoDoor)) {
      return fail(ErrorCode::kUnavailable, address.substr(std::string(kNoDoor).size()));
    }
    auto memory = knock(address, joining_.until);
    if (!memory) return fail(std::move(memory.error()));
    return Segment::map(std::move(*memory), geometry);
  }

  const Joining& joining_;
  const std::shared_ptr<PeerWatch>& watch_;
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
                       const std::vector<int>& job_ranks) {
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
        placement.why_not = "ranks " + std::to_string(job_ranks[first]) + " and " +
                            std::to_string(job_ranks[rank]) +
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
