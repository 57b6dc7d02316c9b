// The agent's end of the connection to a leader in another process: connects, joins, sends
// heartbeats, resumes a broken connection, and reports once when the leader is gone. Until the
// leader is first reached, its name is looked up and its addresses are tried repeatedly up to the
// join time limit: the nodes of a job start in any order, and a name may become known late.
// Everything happens on the transport's thread; names are looked up on another one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/clock.h"
#include "rendezvous/common/endpoint.h"
#include "rendezvous/leader/leader.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/liveness.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {

struct RoundClientOptions {
  Endpoint leader;
  KeepAlive keep_alive;
  std::chrono::milliseconds join_timeout{600'000};
  std::string token;
};

class RoundClient final : public Leader {
 public:
  RoundClient(std::shared_ptr<Transport> transport, RoundClientOptions options,
              LeaderEvents events);
  ~RoundClient() override;

  void join(NodeHello hello) override;
  void tell(const ToLeader& message) override;
  void ask(PeerRequest request) override { send_unnumbered(std::move(request)); }
  void answer(PeerReply reply) override { send_unnumbered(std::move(reply)); }
  bool may_exit() override { return is_over_ || resend_.unconfirmed().empty(); }
  bool is_here() const override { return false; }
  std::string local_address() const override { return local_address_; }

 private:
  // ---- reaching the leader
  void look_up();
  void try_all(const std::vector<std::string>& addresses);
  void try_next_address();
  void connect();
  void not_connected(const std::string& why);
  void try_later();
  void tell_of_waiting(CoreTime::duration after);
  void connected(StreamPtr stream);

  // ---- over a connection
  void read(std::string_view bytes);
  bool take_opening();
  void take_frame(wire::LeaderFrame frame);
  void take_welcome(const wire::Welcome& welcome);
  void take_message(wire::Message<ToAgent> message);
  void send(const wire::AgentFrame& frame) { stream_->send(wire::encode(frame)); }
  void send_numbered(const Numbered<ToLeader>& each);
  void send_unnumbered(const wire::AgentFrame& frame);
  void lose_connection(const std::string& why);
  void refuse_leader(const std::string& why);

  // ---- its end
  void keep_alive();
  void await_loss();
  std::string how_it_went() const;
  void give_up(std::string sentence);
  void leader_was_replaced();
  void end(LeaderEvent event);
  void close();

  const std::shared_ptr<Transport> transport_;
  const RoundClientOptions options_;
  const LeaderEvents events_;

  std::unique_ptr<Attempt> attempt_;  // a name lookup or a connection
  const std::unique_ptr<Timer> retry_timer_;
  const std::unique_ptr<Timer> notice_timer_;
  const std::unique_ptr<Timer> patience_timer_;  // for a connection without a Welcome yet
  const std::unique_ptr<Timer> keep_alive_timer_;
  const std::unique_ptr<Timer> loss_timer_;

  std::vector<std::string> addresses_;  // not tried yet
  std::string address_;                 // of the present attempt or connection
  std::chrono::milliseconds pause_{};   // before the next attempt
  std::string tried_;                   // what happened with the addresses before this one
  std::string why_not_;                 // why the last attempt failed
  CoreTime join_started_{};

  StreamPtr stream_;
  wire::FrameReader reader_{0};
  wire::Nonce ours_{};
  wire::Nonce theirs_{};
  bool has_opening_ = false;  // the leader's Opening on this connection was read
  bool was_refused_ = false;  // the last connection attempt
  bool is_welcome_ = false;   // Welcome was received on this connection
  bool was_welcome_ = false;  // Welcome was received in this session
  bool is_over_ = true;       // there is no session: not yet, or the leader has ended it
  std::optional<std::uint64_t> leader_id_;  // the leader of this session; nullopt before Welcome
  NodeHello hello_;
  ResendQueue<ToLeader> resend_;
  LeaderLiveness liveness_;
  std::string local_address_ = "127.0.0.1";
};

}  // namespace ddprun::rdzv
