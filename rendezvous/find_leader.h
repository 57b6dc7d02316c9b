// Who leads: decided once, when an agent starts. It leads itself where it was told to, or where the
// endpoint is an address of this machine that nobody listens at yet; otherwise the leader is
// elsewhere. Everything happens on the thread that runs the io_context; names are looked up beside
// it, again and again until the join time limit, because they become known late.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/endpoint.h"
#include "rendezvous/base/result.h"
#include "rendezvous/leader.h"
#include "rendezvous/leader_spec.h"
#include "rendezvous/listener.h"
#include "rendezvous/round_core.h"

namespace ddprun::rdzv {

struct FoundLeader {
  std::unique_ptr<Leader> leader;
};

class LeaderSearch {
 public:
  virtual ~LeaderSearch() = default;
};

// `done` is called once, maybe before this returns, unless the search is destroyed before. Errors
// are sentences: kTimeout where the endpoint's name did not become known in time.
std::unique_ptr<LeaderSearch> find_leader(boost::asio::io_context& io, const LeaderSpec& spec,
                                          const RoundConfig& config, LeaderEvents events,
                                          std::function<void(Result<FoundLeader>)> done);

// The listening socket of a leader at this endpoint, whose addresses (numeric) are these. At an
// address of this machine, and at no other; on all interfaces where the endpoint is a name or an
// address that stands for this machine only from outside (a service, a translated address).
Result<Listener> open_leader_port(const Endpoint& endpoint,
                                  const std::vector<std::string>& addresses,
                                  std::optional<PortRange> instead_of_its_port = std::nullopt);

}  // namespace ddprun::rdzv
