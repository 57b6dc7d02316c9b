// The leader's shell: owns the RoundCore, its one timer, and the connections of the agents; hands
// in what they say and sends what comes out. Owned by the agent that leads (whose own messages do
// not travel) or by `ddpctl leader`; everything here happens on the transport's thread.
//
// The mistake to avoid: reporting a broken connection from where something is written to it. That
// would be a step of the core within a step; the reading side learns of it too, and reports it.
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
#include "rendezvous/leader/admission.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_core.h"
#include "rendezvous/round/round_input.h"

namespace ddprun::rdzv {

struct RoundServerOptions {
  RoundConfig round;
  KeepAlive keep_alive;
  std::string token;  // empty: everybody may take part
  // The host of the endpoint, as its user wrote it: what nodes are reached at that are on this
  // machine too and came over loopback. Empty: they are reached at what they came from.
  std::string host;
  std::optional<Resumption> resumption = {};  // of a job that another leader led
  // What may be said now of what the core says; the rest is given to release() when it may. None:
  // all. As long as something is held back the core's time stands still: nobody is late with an
  // answer to what was not said.
  struct Passed {
    std::vector<ToNode> messages;
    bool is_holding = false;
  };
  std::function<Passed(const RoundCore&, std::vector<ToNode>)> write_ahead = {};
};

class RoundServer final : public Leader {
 public:
  // Without a listener nobody else takes part.
  RoundServer(std::shared_ptr<Transport> transport, RoundServerOptions options, LeaderEvents events,
              std::optional<Listener> listener = std::nullopt);
  ~RoundServer() override;

  void join(NodeHello hello) override;
  void tell(const ToLeader& message) override;
  void ask(PeerRequest request) override;
  void answer(PeerReply reply) override;
  bool may_exit() override { return core_.was_everyone_told(); }
  bool is_here() const override { return true; }
  std::string local_address() const override;

  // Of what was held back, what may be said now, and whether something still is.
  void release(RoundServerOptions::Passed passed);

  const RoundCore& core() const { return core_; }
  const Endpoint& bound() const { return *bound_; }

 private:
  struct Peer {
    std::uint64_t session_number = 0;
    ResendQueue<ToAgent> resend;
    StreamPtr stream;             // none: it is broken
    wire::FrameReader reader{0};  // of that connection
    std::string address;          // numeric, of its last connection
    bool owes_confirmation = false;
  };

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
  void take_own(wire::LeaderFrame frame);
  template <typename Handler>
  void post(Handler handler);

  // ---- the core
  void feed(NodeId node, decltype(RoundInput::what) what);
  CoreTime time() const { return time_.at(transport_->now()); }
  void send(NodeId to, ToAgent message);
  void confirm(Peer& peer);
  void forget(NodeId id);
  void arm_timer();
  void keep_alive();
  void drop_the_silent();

  const std::shared_ptr<Transport> transport_;
  const RoundServerOptions options_;
  const LeaderEvents events_;
  std::optional<Endpoint> bound_;  // none: nobody else takes part
  std::optional<Admission> admission_;
  PausableTime time_;  // the core's

  RoundCore core_;
  Liveness liveness_;
  const std::uint64_t leader_id_;
  std::map<NodeId, Peer> peers_;  // all but the own node
  std::unordered_map<std::uint64_t, NodeId> sessions_;
  std::unordered_multiset<std::string> addresses_;  // of all peers
  std::uint32_t next_node_ = 1;                     // 0 is the own node

  const std::unique_ptr<Timer> core_timer_;
  const std::unique_ptr<Timer> keep_alive_timer_;
  const std::unique_ptr<Timer> silence_timer_;

  struct Life {};  // handlers that are under way end with it
  std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

}  // namespace ddprun::rdzv
