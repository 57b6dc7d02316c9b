// The leader's shell: owns the RoundCore, its timer, and the connections of the agents; passes
// their messages to the core and sends the core's messages. Owned by the agent that leads (whose
// own messages stay in the process) or by `ddpctl leader`; everything happens on the transport's
// thread.
//
// Do not report a broken connection where data is written to it, because that would run a step of
// the core within another step; the reading side notices it too, and reports it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/leader/admission.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {

struct RoundServerOptions {
  RoundConfig round;
  KeepAlive keep_alive;
  NodeProof proof;
  // The host of the endpoint, as the user wrote it. Nodes that connect over loopback are on this
  // machine too: other nodes reach them at this host. Empty: at the address that they connect from.
  std::string host;
  std::optional<Resumption> resumption = {};  // for a job that another leader has led
  // A write-ahead filter: returns those of the core's messages that may be sent now; the rest is
  // passed to release() later. Not set: all are sent. While messages are held back the core's time
  // is paused, so that no node is late with an answer to a message that was not sent.
  struct Passed {
    std::vector<ToNode> messages;
    bool is_holding = false;
  };
  std::function<Passed(const RoundCore&, std::vector<ToNode>)> write_ahead = {};
};

class RoundServer final : public Leader {
 public:
  // Without a listener there are no other nodes.
  RoundServer(std::shared_ptr<Transport> transport, RoundServerOptions options, LeaderEvents events,
              std::optional<Listener> listener = std::nullopt);
  ~RoundServer() override;

  void join(NodeHello hello) override { tell(hello); }
  void tell(const ToLeader& message) override { feed(kOwnNode, message); }
  void ask(PeerRequest request) override { relay(kOwnNode, std::move(request)); }
  void answer(PeerReply reply) override { relay(kOwnNode, std::move(reply)); }
  bool may_exit() override { return core_.was_everyone_told(); }
  bool is_here() const override { return true; }
  std::string local_address() const override { return bound_ ? bound_->host : "127.0.0.1"; }

  // Sends messages that were held back; `passed` says whether others still are.
  void release(RoundServerOptions::Passed passed);

  const RoundCore& core() const { return core_; }
  const Endpoint& bound() const { return *bound_; }
  std::optional<WaitForNodes> wait() const { return core_.wait(time()); }

 private:
  static constexpr NodeId kOwnNode{0};
  struct Peer {
    std::uint64_t session_number = 0;
    ResendQueue<ToAgent> resend;
    StreamPtr stream;             // null: the connection is broken
    wire::FrameReader reader{0};  // of `stream`
    std::string address;          // numeric, of its last connection
    bool owes_confirmation = false;
  };

  void tell_who_may_join();
  void report(const std::vector<LeaderNews>& news);
  void admit(Admission::Applicant applicant);
  void resume(NodeId id, Admission::Applicant applicant);
  void attach(NodeId id, Peer& peer, Admission::Applicant& applicant);
  void read(NodeId id, const StreamPtr& stream, std::string_view bytes);
  bool take_frame(NodeId id, wire::AgentFrame& frame);
  void lose(NodeId id, const StreamPtr& stream);
  void set_address(Peer& peer, std::string address);
  void hand_to_store(const StreamPtr& stream, std::string received);
  std::string address_for_workers(const std::string& seen) const;

  // ---- requests of nodes to each other
  void relay(NodeId from, PeerRequest request);
  void relay(NodeId from, PeerReply reply);
  bool send_unnumbered(NodeId to, wire::LeaderFrame frame);

  // ---- the core
  void feed(NodeId node, decltype(RoundInput::what) what);
  CoreTime time() const { return time_.at(transport_->now()); }
  void send(NodeId to, ToAgent message);
  void send(Peer& peer, const Numbered<ToAgent>& each);
  static void send(Stream& stream, const wire::LeaderFrame& frame);
  void confirm(Peer& peer);
  void forget(NodeId id);
  void arm_timer();
  void keep_alive();
  void drop_the_silent();

  const std::shared_ptr<Transport> transport_;
  const RoundServerOptions options_;
  const LeaderEvents events_;
  std::optional<Endpoint> bound_;  // nullopt: there are no other nodes
  std::optional<Admission> admission_;
  PausableTime time_;  // of the core

  RoundCore core_;
  Liveness liveness_;
  const std::uint64_t leader_id_;
  std::map<NodeId, Peer> peers_;  // all nodes but our own
  std::unordered_map<std::uint64_t, NodeId> sessions_;
  std::unordered_multiset<std::string> addresses_;  // of all peers
  std::uint32_t next_node_ = 1;                     // 0 is our own node

  const std::unique_ptr<TransportTimer> core_timer_;
  const std::unique_ptr<TransportTimer> keep_alive_timer_;
  const std::unique_ptr<TransportTimer> silence_timer_;

  const Lifetime lifetime_;
};

}  // namespace ddprun::rdzv
