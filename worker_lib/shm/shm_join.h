// How the ranks of a group find out which of them are on one node and get the memory that they
// share: through the store that they meet at, given as two functions, so without LibTorch, and the
// ranks of a node at the door of their first (shm_door.h). All members
// call; all come to the same answer, also when it is that shared memory cannot be had. Blocking; one
// thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker_lib/shm/shm_door.h"
#include "worker_lib/shm/shm_group.h"

namespace ddprun::shm {

struct Exchange {
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
  bool has_neighbours() const { return !nodes.empty() && nodes.size() < members(); }
  std::size_t members() const;
};
Placement placement_of(const std::vector<std::string>& identities,
                       const std::vector<int>& global_ranks);

struct Joining {
  Exchange exchange;
  std::string identity;
  int rank = 0;
  std::vector<int> global_ranks;
  std::size_t bytes_per_rank = 0;
  Deadline until;
};

struct Joined {
  Placement placement;
  std::shared_ptr<NodeGroup> node;  // none where no two members are on one node
};

// Errors: the same sentence on all ranks, for a group that has to do without.
Result<Joined> join(const Joining& joining, const std::shared_ptr<PeerWatch>& watch);

}  // namespace ddprun::shm
