// Decides once, when an agent starts, whether it leads. It leads if it was told to, or if the
// endpoint is a free address of this machine; otherwise the leader is elsewhere. A node that was told to
// lead by default only, while the endpoint is on another machine, has no rank: that is an error. Everything happens on the thread that runs the io_context; names are looked up on
// another thread, repeatedly until the join time limit, because a name may become known late.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "rendezvous/common/result.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/leader_spec.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/round_config.h"

namespace ddprun::rdzv {

using FoundLeader = std::unique_ptr<Leader>;

// `done` is called once, maybe before this returns, unless the search is destroyed before. Errors
// are sentences: kTimeout if the endpoint's name did not become known in time, kInvalidArgument if an option is wrong.
std::unique_ptr<Attempt> find_leader(boost::asio::io_context& io, const LeaderSpec& spec,
                                     const RoundConfig& config, LeaderEvents events,
                                     std::function<void(Result<FoundLeader>)> done);

}  // namespace ddprun::rdzv
