// The port at which a leader listens, and whether an endpoint is on this machine. Never waits for a
// name server; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/result.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

// The first of these addresses (numeric) that belongs to this machine.
std::optional<std::string> local_address_among(const std::vector<std::string>& addresses);

// As gethostname() says it; empty: unknown.
std::string own_host_name();

// Opens the listening socket of a leader at this endpoint, whose numeric addresses are these. It
// listens only at the endpoint's own address, if that belongs to this machine. It listens on all
// interfaces if no address does (a service, a translated address), or if a name resolves to
// loopback.
Result<Listener> open_leader_port(const Endpoint& endpoint,
                                  const std::vector<std::string>& addresses,
                                  std::optional<PortRange> instead_of_its_port = std::nullopt);

// The first line of a leader that waits: "leads at node0:29500; waiting for nodes: …". `option`: by which a
// place is given that nodes on other hosts can reach.
std::string describe(const Endpoint& endpoint, const WaitForNodes& wait, const std::string& option);

}  // namespace ddprun::rdzv
