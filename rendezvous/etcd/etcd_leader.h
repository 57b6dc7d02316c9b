// The leader under etcd, as an agent sees it: this agent itself, or another one, and over time now
// this one and then that one. The shell of the ElectionCore and the LeadershipCore: asks etcd, keeps
// the lease, watches the leader's key; owns a RoundServer while it leads and a RoundClient while it
// follows. Owned by the agent; everything happens on the transport's thread.
//
// What an agent sees of a change: LeaderGone with was_replaced, after which it stops its workers and
// joins anew; the next leader then has it. The mistake to avoid: destroying a server or client from within one of
// its own events; that is why events of theirs are posted before they become actions here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct EtcdLeaderOptions {
  EtcdSpec etcd;
  RoundConfig round;  // of the rounds that this agent leads
  KeepAlive keep_alive;
  std::chrono::milliseconds join_timeout{600'000};
  std::string token;  // secret; empty: none
};

// What it stands on.
struct EtcdLeaderParts {
  std::shared_ptr<Transport> transport;
  std::unique_ptr<EtcdHttp> http;
  // The port of a leader at this host, whose numeric addresses are these (none: not known).
  std::function<Result<Listener>(const std::string& host, const std::vector<std::string>&)>
      open_port;
};
std::unique_ptr<Leader> make_etcd_leader(EtcdLeaderParts parts, EtcdLeaderOptions options,
                                         LeaderEvents events);

// Over real sockets. The files that options.etcd names are read here: kInvalidArgument where one is
// no good.
Result<std::unique_ptr<Leader>> make_etcd_leader(boost::asio::io_context& io,
                                                 EtcdLeaderOptions options, LeaderEvents events);

}  // namespace ddprun::rdzv
