// The leader under etcd, as an agent sees it: this agent itself or another one, which may change
// over time. The shell of the ElectionCore and the LeadershipCore: sends requests to etcd, keeps
// the lease, watches the leader's key; owns a RoundServer while it leads and a RoundClient while it
// follows. Owned by the agent; everything happens on the transport's thread.
//
// When the leader changes, the agent gets LeaderGone with was_replaced; it then stops its workers
// and joins again, which takes it to the next leader. Do not destroy a server or a client from
// within one of its own events: their events are posted to the loop before they become actions
// here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct EtcdLeaderOptions {
  EtcdSpec etcd;
  RoundConfig round;  // for the rounds that this agent leads
  KeepAlive keep_alive;
  std::chrono::milliseconds join_timeout{600'000};
  NodeProof proof;
};

// What an EtcdLeader needs from outside.
struct EtcdLeaderParts {
  std::shared_ptr<Transport> transport;
  std::unique_ptr<EtcdHttp> http;
  // Opens a leader's port at this host, which has these numeric addresses (empty: unknown).
  std::function<Result<Listener>(const std::string& host, const std::vector<std::string>&)>
      open_port;
};
std::unique_ptr<Leader> make_etcd_leader(EtcdLeaderParts parts, EtcdLeaderOptions options,
                                         LeaderEvents events);

// Over real sockets. `tls`: made of the files that options.etcd names; null: without TLS.
std::unique_ptr<Leader> make_etcd_leader(boost::asio::io_context& io, EtcdLeaderOptions options,
                                         std::shared_ptr<TlsContext> tls, LeaderEvents events);

}  // namespace ddprun::rdzv
