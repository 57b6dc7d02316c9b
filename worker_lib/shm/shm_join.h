// How the ranks of a group find out which of them are on one node and get the memory that they
// share: through the store that they meet at, given as two functions, so without LibTorch, and within
// a node by a handshake with its first rank (shm_handshake.h). All members call; all come to the same
// answer, also when it is that shared memory cannot be had. Blocking; one thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker_lib/shm/shm_group.h"
#include "worker_lib/shm/shm_handshake.h"

namespace ddprun::shm {

struct StoreAccess {
  std::function<void(const std::string& key, const std::string& value)> set;
  // The values of all of them, when all are there; throws at the store's time limit.
  std::function<std::vector<std::string>(const std::vector<std::string>& keys)> get;
};

// What two processes must have the same of in order to share memory by this library: the running
// system, the name spaces through which they would see each other, the user, and the version. One
// line "what=value" each, the machine and the launcher's node first: workers of two launchers on one
// machine are on two nodes, as for everybody else. `node` tells the nodes of a machine apart.
std::string identity_of_this_process(int node);

struct Placement {
  // The members by node, in the order of their ranks; each node's first one leads it.
  std::vector<std::vector<int>> nodes;
  // When members on one machine are kept apart: who, and by what.
  std::string why_not;

  const std::vector<int>& node_of(int rank) const;
  bool has_neighbours() const {
    return std::ranges::any_of(nodes, [](const auto& members) { return members.size() > 1; });
  }
};
Placement placement_of(const std::vector<std::string>& identities,
                       const std::vector<int>& global_ranks);

struct Joining {
  StoreAccess store;
  std::string identity;
  int rank = 0;
  std::vector<int> global_ranks;
  std::size_t bytes_per_rank = 0;
  Patience patience;
};

struct Joined {
  Placement placement;
  std::shared_ptr<NodeGroup> node;  // none where no two members are on one node
};

// Throws Failure, with the same sentence on all ranks, for a group that has to do without.
Joined join(const Joining& joining, const std::shared_ptr<PeerWatch>& watch);

}  // namespace ddprun::shm
