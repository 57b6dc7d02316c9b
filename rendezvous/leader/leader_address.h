// The port at which a leader listens, and whether an endpoint is of this machine. Blocks for no name;
// any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/net/listener.h"

namespace ddprun::rdzv {

// The first of these addresses (numeric) that is this machine's.
std::optional<std::string> local_address_among(const std::vector<std::string>& addresses);

// The listening socket of a leader at this endpoint, whose addresses (numeric) are these. At an
// address of this machine, and at no other; on all interfaces where the endpoint is a name or an
// address that stands for this machine only from outside (a service, a translated address).
Result<Listener> open_leader_port(const Endpoint& endpoint,
                                  const std::vector<std::string>& addresses,
                                  std::optional<PortRange> instead_of_its_port = std::nullopt);

}  // namespace ddprun::rdzv
