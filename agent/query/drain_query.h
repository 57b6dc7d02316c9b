// Which host a user means by `ddpctl drain NODE`, by what the leader knows. Pure; any thread.
#pragma once

#include <string_view>

#include "agent/status/job_status.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct DrainedHost {
  MemberStatus member;  // one of the nodes on that host
  // The other nodes that the job lacks before that host can be left out; 0: it is left out at once.
  int missing = 0;
};

// `name`: its name or address, or the rank of a node of the round. An error names the nodes that are there.
Result<DrainedHost> drained_host(const LeaderStatus& leader, std::string_view name);

}  // namespace ddprun::agent
