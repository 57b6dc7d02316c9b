// Which host a user means by `ddpctl drain NODE`, and what can come of it, by what the leader knows. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "agent/status/job_status.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct DrainedHost {
  std::string host;
  std::string address;
  bool leads = false;
  std::string why;  // it is to be left out already; empty: it is not
  // The other nodes that the job lacks before it can go on without that host.
  int missing = 0;
};

// `name`: its name or address, or the rank of a node of the round. An error names the nodes that are there.
Result<DrainedHost> host_to_drain(const LeaderStatus& leader, std::string_view name);
// Also a host that is to be left out and not there.
Result<DrainedHost> host_to_undrain(const LeaderStatus& leader, std::string_view name);

}  // namespace ddprun::agent
