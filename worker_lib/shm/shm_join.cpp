#include "worker_lib/shm/shm_join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <type_traits>
#include <utility>

#include "rendezvous/common/worker_abi/untried_arch.h"

namespace ddprun::shm {
namespace {

// In what two identities of one machine differ: "mount namespace".
std::string difference(const std::string& one, const std::string& other) {
  const std::string_view same(one.begin(), std::ranges::mismatch(one, other).in1);
  const std::size_t line = same.rfind('\n') + 1;
  return line < one.size() ? one.substr(line, one.find('=', line) - line) : "version";
}

std::vector<std::string> keys_of(const char* what, std::size_t count) {
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(std::string(what) + "/" + std::to_string(i));
  }
  return keys;
}

// What follows a rank's identity in the store: the address of its listener, or why it has none.
constexpr std::string_view kAddress = "address=";
constexpr std::string_view kNoAddress = "none: ";

class Joiner {
 public:
  Joiner(const Joining& joining, const std::shared_ptr<PeerWatch>& watch)
      : joining_(joining), watch_(watch) {}

  Joined join() {
    std::optional<Listener> listener;
    std::string trouble = why_untried_arch("shared memory", std::getenv(kUntriedArchVariable));
    try {
      if (trouble.empty()) listener.emplace();
    } catch (const Failure& failure) {
      trouble = failure.error().message;
    }
    introduce(listener ? listener->address() : std::string(kNoAddress) + trouble);
    Joined joined;
    joined.placement = placement_of(identities_, joining_.global_ranks);
    const auto& nodes = joined.placement.nodes;
    if (!joined.placement.why_not.empty()) {
      throw Failure(ErrorCode::kUnavailable, joined.placement.why_not);
    }
    if (!joined.placement.has_neighbours()) return joined;
    for (std::size_t rank = 0; rank < addresses_.size(); ++rank) {
      if (!addresses_[rank].starts_with(kNoAddress)) continue;
      throw Failure(ErrorCode::kUnavailable,
                    by_rank(rank, addresses_[rank].substr(kNoAddress.size())));
    }
    for (const auto& node : nodes) {
      if (node.size() <= kMostRanks) continue;
      throw Failure(ErrorCode::kResourceExhausted,
                    "more than " + std::to_string(kMostRanks) + " ranks on a node");
    }
    try {
      joined.node = join_node(*listener, joined.placement.node_of(joining_.rank));
    } catch (const Failure& failure) {
      trouble = failure.what();
    }
    if (nodes.size() > 1) hear_of_nodes(nodes, trouble);
    if (!joined.node) throw Failure(ErrorCode::kUnavailable, trouble);
    return joined;
  }

 private:
  void introduce(const std::string& address) {
    const auto keys = keys_of("who", joining_.global_ranks.size());
    joining_.store.set(keys[static_cast<std::size_t>(joining_.rank)],
                       joining_.identity + std::string(kAddress) + address);
    for (const std::string& said : joining_.store.get(keys)) {
      const std::size_t end = std::min(said.rfind(kAddress), said.size());
      identities_.push_back(said.substr(0, end));
      addresses_.push_back(said.substr(std::min(end + kAddress.size(), said.size())));
    }
  }

  // Each part is made on every rank of the node or on none.
  std::shared_ptr<NodeGroup> join_node(const Listener& listener, const std::vector<int>& members) {
    // Who is alone on its node has no use for more than what there has to be.
    const std::size_t bytes = members.size() == 1 ? 0 : joining_.bytes_per_rank;
    const int size = static_cast<int>(members.size());
    const Geometry geometry = geometry_for(size, bytes);
    const auto at = std::find(members.begin(), members.end(), joining_.rank);
    const int index = static_cast<int>(at - members.begin());
    Handshake handshake = index == 0
                              ? Handshake::accept(listener, size, joining_.patience)
                              : Handshake::connect(addresses_[static_cast<std::size_t>(members[0])],
                                                   index, joining_.patience);
    auto segment = together(handshake, [&] {
      auto own = std::make_shared<Segment>(
          index == 0 ? hand_out(handshake, geometry)
                     : Segment::map(handshake.receive_memory(), geometry));
      own->allocate(index);
      announce(*own, index);
      return own;
    });
    std::vector<int> global_ranks(members.size());
    std::ranges::transform(members, global_ranks.begin(), [this](int member) {
      return joining_.global_ranks[static_cast<std::size_t>(member)];
    });
    return together(handshake, [&] {
      return std::make_shared<NodeGroup>(std::move(segment), index, std::move(global_ranks),
                                         watch_);
    });
  }

  static Segment hand_out(Handshake& handshake, const Geometry& geometry) {
    auto segment = [&] {
      try {
        return Segment::make(geometry);
      } catch (const Failure&) {
        handshake.send_memory({});
        throw;
      }
    }();
    handshake.send_memory(segment.memory());
    return segment;
  }

  // What f() gives, if it throws on no rank of the node; else the first such rank's error on all.
  template <typename Function>
  std::invoke_result_t<Function> together(Handshake& handshake, const Function& f) const {
    std::invoke_result_t<Function> own;
    std::string trouble;
    try {
      own = f();
    } catch (const Failure& failure) {
      trouble = by_rank(static_cast<std::size_t>(joining_.rank), failure.what());
    }
    const std::string first = handshake.agree(trouble);
    if (!first.empty()) throw Failure(ErrorCode::kUnavailable, first);
    return own;
  }

  // Throws everywhere the text of the first node that has failed.
  void hear_of_nodes(const std::vector<std::vector<int>>& nodes, const std::string& trouble) {
    const auto keys = keys_of("well", nodes.size());
    for (std::size_t node = 0; node < nodes.size(); ++node) {
      if (nodes[node].front() == joining_.rank) joining_.store.set(keys[node], trouble);
    }
    for (const std::string& text : joining_.store.get(keys)) {
      if (!text.empty()) throw Failure(ErrorCode::kUnavailable, text);
    }
  }

  std::string by_rank(std::size_t rank, const std::string& text) const {
    return "rank " + std::to_string(joining_.global_ranks[rank]) + ": " + text;
  }

  const Joining& joining_;
  const std::shared_ptr<PeerWatch>& watch_;
  std::vector<std::string> identities_;
  std::vector<std::string> addresses_;
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

Placement placement_of(const std::vector<std::string>& identities,
                       const std::vector<int>& global_ranks) {
  Placement placement;
  const auto machine = [&](std::size_t rank) {
    return identities[rank].substr(0, identities[rank].find('\n'));
  };
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const auto node = std::ranges::find_if(placement.nodes, [&](const auto& members) {
      return machine(static_cast<std::size_t>(members.front())) == machine(rank);
    });
    if (node == placement.nodes.end()) {
      placement.nodes.push_back({static_cast<int>(rank)});
      continue;
    }
    const auto first = static_cast<std::size_t>(node->front());
    if (identities[first] != identities[rank]) {
      placement.why_not = "ranks " + std::to_string(global_ranks[first]) + " and " +
                          std::to_string(global_ranks[rank]) +
                          " are on one machine but not of one " +
                          difference(identities[first], identities[rank]);
      return placement;
    }
    node->push_back(static_cast<int>(rank));
  }
  return placement;
}

Joined join(const Joining& joining, const std::shared_ptr<PeerWatch>& watch) {
  return Joiner(joining, watch).join();
}

}  // namespace ddprun::shm
