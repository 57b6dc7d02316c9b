// The leader under etcd, as an agent sees it: this agent itself, or another one, and over time now
// this one and then that one. The shell of the ElectionCore: asks etcd, keeps the lease, watches the
// leader's key; owns a RoundServer while it leads and a RoundClient while it follows. Owned by the
// agent; everything happens on the thread that runs the io_context.
//
// What an agent sees of a change: LeaderGone with was_replaced, after which it stops its workers and
// joins anew; the next leader then has it. The mistake to avoid: destroying a server or client from within one of
// its own events; that is why events of theirs are posted before they become actions here.
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/etcd_spec.h"
#include "rendezvous/leader/leader.h"
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

class EtcdLeader final : public Leader {
 public:
  // The files that options.etcd names are read here: kInvalidArgument where one is no good.
  static Result<std::unique_ptr<EtcdLeader>> make(boost::asio::io_context& io,
                                                  EtcdLeaderOptions options, LeaderEvents events);
  ~EtcdLeader() override;

  void join(NodeHello hello) override;
  void tell(const ToLeader& message) override;
  void ask(PeerRequest question) override;
  void answer(PeerReply answer) override;
  bool may_exit() override;
  bool is_here() const override;
  std::string local_address() const override;

 private:
  class Impl;
  explicit EtcdLeader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun::rdzv
