#include "rendezvous/round/round_starts.h"

#include <map>
#include <string>

namespace ddprun::rdzv {

std::vector<std::pair<NodeId, RoundStart>> round_starts(const Membership& members,
                                                        RoundStart start) {
  const std::vector<NodeId>& group = members.group();
  start.node_count = static_cast<int>(group.size());
  start.master_addr = members.hello_of(group.front()).address;
  start.world_size = 0;
  struct Role {
    int size = 0;
    int offset = 0;
  };
  std::map<std::string, Role> roles;
  for (const NodeId id : group) {
    const NodeHello& hello = members.hello_of(id);
    start.world_size += hello.local_world_size;
    roles[hello.role].size += hello.local_world_size;
  }
  std::vector<std::pair<NodeId, RoundStart>> starts;
  starts.reserve(group.size());
  for (const NodeId id : group) {
    const NodeHello& hello = members.hello_of(id);
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
