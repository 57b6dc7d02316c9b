#include "rendezvous/leader/round_client.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/notice_times.h"
#include "rendezvous/common/random_number.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/leader/token.h"
#include "rendezvous/net/name_lookup.h"
#include "rendezvous/round/resend_queue.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using wire::Wants;

constexpr milliseconds kFirstPause{20};  // while the leader is not reachable yet; doubled each time
constexpr milliseconds kLongestPause{1000};
constexpr milliseconds kResumePause{50};    // short, to stay within the grace
constexpr auto kConnectPatience = 3s;       // for the only address, or the last one
constexpr auto kShortConnectPatience = 1s;  // if there is another one to try
constexpr auto kAnswerPatience = 5s;        // from the connection to Welcome
constexpr auto kFirstNotice = 1s;

constexpr const char* kNoLeader =
    "what listens there is no ddprun leader: it does not speak the round protocol; give the "
    "endpoint of this job's leader";

constexpr const char* kBreaksProtocol = "the leader breaks the protocol";

class RoundClient final : public Leader {
 public:
  RoundClient(std::shared_ptr<Transport> transport, RoundClientOptions options, LeaderEvents events)
      : transport_(std::move(transport)),
        options_(std::move(options)),
        events_(std::move(events)),
        retry_timer_(transport_->make_timer()),
        notice_timer_(transport_->make_timer()),
        patience_timer_(transport_->make_timer()),
        keep_alive_timer_(transport_->make_timer()),
        loss_timer_(transport_->make_timer()),
        liveness_(options_.keep_alive) {}

  ~RoundClient() override { close(); }

  void join(NodeHello hello) override {
    close();
    hello.session = random_number();
    hello_ = std::move(hello);
    resend_ = {};
    resend_.send(hello_);
    is_over_ = was_welcome_ = false;
    leader_id_.reset();
    liveness_ = LeaderLiveness(options_.keep_alive);
    pause_ = {};
    join_started_ = transport_->now();
    why_not_ = "it is being looked up";
    tell_of_waiting(kFirstNotice);
    look_up();
  }

  void tell(const ToLeader& message) override {
    if (is_over_) return;
    const auto& numbered = resend_.send(message);
    if (is_welcome_) send_numbered(numbered);
  }

  void ask(PeerRequest request) override { send_unnumbered(std::move(request)); }
  void answer(PeerReply reply) override { send_unnumbered(std::move(reply)); }
  bool may_exit() override { return is_over_ || resend_.is_confirmed(); }
  bool is_here() const override { return false; }
  std::string local_address() const override { return local_address_; }

 private:
  // ---- reaching the leader
  void look_up() {
    if (const auto known = addresses_without_lookup(options_.leader.host)) return try_all(*known);
    attempt_ = transport_->look_up(options_.leader.host,
                                   [this](Result<std::vector<std::string>> addresses) {
                                     if (addresses) return try_all(*addresses);
                                     why_not_ = addresses.error().message;
                                     try_later();
                                   });
  }

  void try_all(const std::vector<std::string>& addresses) {
    addresses_ = {addresses.rbegin(), addresses.rend()};
    tried_.clear();
    try_next_address();
  }

  void try_next_address() {
    if (addresses_.empty()) return try_later();
    address_ = std::move(addresses_.back());
    addresses_.pop_back();
    why_not_ = tried_ + address_ + ": no answer yet";
    connect();
  }

  void connect() {
    attempt_ =
        transport_->connect({address_, options_.leader.port}, [this](Result<StreamPtr> stream) {
          patience_timer_->cancel();
          was_refused_ = !stream && stream.error().code == ErrorCode::kUnavailable;
          if (stream) return connected(std::move(*stream));
          not_connected(stream.error().message);
        });
    const auto patience = addresses_.empty() ? kConnectPatience : kShortConnectPatience;
    patience_timer_->at(transport_->now() + patience, [this] {
      attempt_.reset();
      was_refused_ = false;
      not_connected("no answer");
    });
  }

  void not_connected(const std::string& why) {
    if (was_welcome_) {
      retry_timer_->at(transport_->now() + kResumePause, [this] {
        if (!stream_) connect();
      });
      return;
    }
    why_not_ = tried_ + address_ + ": " + why;
    tried_ = why_not_ + ", ";
    try_next_address();
  }

  void try_later() {
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    retry_timer_->at(transport_->now() + pause_, [this] { look_up(); });
  }

  // Also gives up at the time limit, even if a name server or the network does not answer.
  // `after`: counts from the begin of the wait.
  void tell_of_waiting(CoreTime::duration after) {
    const CoreTime end = join_started_ + options_.join_timeout;
    notice_timer_->at(std::min(join_started_ + after, end), [this, end] {
      if (was_welcome_) return;
      const auto left = std::chrono::ceil<milliseconds>(end - transport_->now());
      const std::string leader = "the leader at " + options_.leader.to_string();
      if (left > 0ms) {
        events_.on_event(
            LeaderNotice{"waiting for " + leader + " (" + why_not_ + "), " +
                         duration_text(std::chrono::round<std::chrono::seconds>(left)) + " left"});
        return tell_of_waiting(next_notice(transport_->now() - join_started_));
      }
      give_up(leader + " could not be reached within " + duration_text(options_.join_timeout) +
              " (" + why_not_ +
              "); check that its node has started, and that its port is not filtered");
    });
  }

  void connected(StreamPtr stream) {
    stream_ = std::move(stream);
    reader_ = wire::FrameReader(limits::kMaxRoundFrameBytes);
    has_opening_ = is_welcome_ = false;
    local_address_ = stream_->local_address();
    ours_ = random_nonce();
    const std::weak_ptr<Stream> weak = stream_;
    stream_->start({.on_bytes =
                        [this, weak](std::string_view bytes) {
                          if (stream_ == weak.lock()) read(bytes);
                        },
                    .on_end =
                        [this, weak](const Error& error) {
                          if (stream_ == weak.lock()) lose_connection(error.message);
                        }});
    stream_->send(wire::encode(wire::Opening{.wants = options_.proof.wants(), .nonce = ours_}));
    patience_timer_->at(transport_->now() + kAnswerPatience,
                        [this] { lose_connection("it accepts connections but does not answer"); });
  }

  // ---- over a connection
  void read(std::string_view bytes) {
    reader_.append(bytes);
    const StreamPtr stream = stream_;
    if (!has_opening_ && !take_opening()) return;
    while (stream_ == stream) {
      const auto payload = reader_.next();
      if (!payload) return lose_connection(payload.error().to_string());
      if (!*payload) return;
      auto frame = wire::decode_leader_frame(**payload);
      if (!frame) return lose_connection(frame.error().to_string());
      take_frame(*std::move(frame));
    }
  }

  // False: it is not complete yet, or the connection has ended.
  bool take_opening() {
    if (reader_.front() != wire::kRoundMagic.front()) return refuse_leader(kNoLeader), false;
    const auto bytes = reader_.take(wire::kOpeningBytes);
    if (!bytes) return false;
    const auto opening = wire::decode_opening(*bytes);
    if (!opening) return refuse_leader(kNoLeader), false;
    if (opening->version != wire::kRoundProtocolVersion) {
      refuse_leader("it speaks version " + std::to_string(opening->version) +
                    " of the round protocol, this ddprun version " +
                    std::to_string(wire::kRoundProtocolVersion) +
                    "; run one version of ddprun on all nodes");
      return false;
    }
    if (const char* const why = cannot_prove(opening->wants)) return refuse_leader(why), false;
    has_opening_ = true;
    theirs_ = opening->nonce;
    if (opening->wants == Wants::kToken && !options_.proof.token.empty()) {
      key_ = options_.proof.token;
      send_connect(proof_of(ProofOf::kAgent, key_, ours_, theirs_));
    } else if (opening->wants == Wants::kMunge && options_.proof.munge) {
      const wire::Nonce secret = random_nonce();
      key_.assign(secret.data(), secret.size());
      prove_by_munge();
    } else {
      // If the leader wants a proof, its answer says so, after its own line has named this node.
      send_connect({});
    }
    return true;
  }

  // Null: what the leader wants is what this node was given, or the leader is to refuse this node.
  const char* cannot_prove(Wants wanted) const {
    const Wants ours = options_.proof.wants();
    if (wanted == ours || ours == Wants::kNothing) return nullptr;
    if (ours == Wants::kToken) {
      return "it has no token, and this node was given one; give all nodes the same by "
             "--token-file=FILE or DDPRUN_TOKEN_FILE";
    }
    if (wanted == Wants::kToken) return nullptr;
    return "it does not prove by munge whose it is, as this node does under Slurm; start munged "
           "where the leader is, and start it in the same Slurm job, or give all nodes the same "
           "--token-file";
  }

  void prove_by_munge() {
    proving_ = transport_->call(
        [munge = options_.proof.munge, contents = credential_contents(key_, ours_, theirs_)] {
          return munge->encode(contents);
        },
        [this](const Result<std::string>& credential) {
          if (!credential) return lose_connection(credential.error().message);
          send_connect(*credential);
        });
  }

  void send_connect(std::string proof) {
    wire::Connect connect;
    connect.session = hello_.session;
    connect.received = resend_.received();
    connect.proof = std::move(proof);
    if (!was_welcome_) connect.hello = hello_;
    send(std::move(connect));
  }

  void take_frame(wire::LeaderFrame frame) {
    if (is_welcome_) {
      liveness_.heard(transport_->now());
      if (const auto* heartbeat = std::get_if<wire::Heartbeat>(&frame)) {
        resend_.confirm(heartbeat->received);
      } else if (auto* message = std::get_if<wire::Message<ToAgent>>(&frame)) {
        take_message(std::move(*message));
      } else if (!pass_on(std::move(frame), events_)) {
        lose_connection(kBreaksProtocol);
      }
    } else if (const auto* welcome = std::get_if<wire::Welcome>(&frame)) {
      take_welcome(*welcome);
    } else if (auto* rejected = std::get_if<wire::Rejected>(&frame)) {
      end(ToAgent(Refused{std::move(rejected->sentence)}));
    } else if (const auto* gone = std::get_if<wire::Gone>(&frame)) {
      if (leader_id_ && *leader_id_ != gone->leader_id) return leader_was_replaced();
      end(ToAgent(DeclaredLost{}));
    } else {
      lose_connection(kBreaksProtocol);
    }
  }

  void take_welcome(const wire::Welcome& welcome) {
    const Wants ours = options_.proof.wants();
    if (ours != Wants::kNothing &&
        !are_equal(welcome.proof, proof_of(ProofOf::kLeader, key_, ours_, theirs_))) {
      return refuse_leader(ours == Wants::kToken ? "it does not know this node's token"
                                                 : "it cannot read this user's credentials");
    }
    if (leader_id_ && *leader_id_ != welcome.leader_id) return leader_was_replaced();
    leader_id_ = welcome.leader_id;
    patience_timer_->cancel();
    const bool is_first = !was_welcome_;
    is_welcome_ = was_welcome_ = true;
    liveness_.heard(transport_->now());
    resend_.confirm(welcome.received);
    for (const auto& each : resend_.unconfirmed()) send_numbered(each);
    await_loss();
    if (is_first) keep_alive();
  }

  void take_message(wire::Message<ToAgent> message) {
    resend_.confirm(message.received);
    const auto arrival = resend_.receive(message.number);
    if (arrival == ResendQueue<ToLeader>::Arrival::kGap) return lose_connection(kBreaksProtocol);
    if (arrival == ResendQueue<ToLeader>::Arrival::kRepeated) return;
    if (is_last(message.body)) return end(std::move(message.body));
    events_.on_event(std::move(message.body));
  }

  void send(const wire::AgentFrame& frame) { stream_->send(wire::encode(frame)); }
  void send_numbered(const Numbered<ToLeader>& each) {
    send(wire::Message<ToLeader>{each.number, resend_.received(), each.message});
  }

  // Not kept for a resumed connection: it is lost if it cannot be sent now.
  void send_unnumbered(const wire::AgentFrame& frame) {
    if (is_welcome_ && stream_->unsent() <= limits::kMaxUnreadAnswerBytes) send(frame);
  }

  void lose_connection(const std::string& why) {
    proving_.reset();
    if (stream_) std::exchange(stream_, nullptr)->close();
    is_welcome_ = false;
    patience_timer_->cancel();
    if (!was_welcome_)
      return not_connected(has_opening_ ? why : "no ddprun leader answers: " + why);
    liveness_.broke(transport_->now());
    await_loss();
    connect();
  }

  // A setting is wrong, so trying again is useless, unless the leader was reached before.
  void refuse_leader(const std::string& why) {
    if (was_welcome_) return lose_connection(why);
    end(ToAgent(Refused{"the leader at " + options_.leader.to_string() + ": " + why}));
  }

  // ---- its end
  void keep_alive() {
    if (is_welcome_) send(wire::Heartbeat{resend_.received()});
    // Called at every interval, so that a pause of our own process is noticed.
    if (liveness_.is_lost(transport_->now())) return give_up(how_it_went());
    keep_alive_timer_->at(transport_->now() + options_.keep_alive.interval,
                          [this] { keep_alive(); });
  }

  // The time limit moves with every message received.
  void await_loss() {
    loss_timer_->at(liveness_.lost_at(), [this] {
      if (liveness_.is_lost(transport_->now())) return give_up(how_it_went());
      await_loss();
    });
  }

  std::string how_it_went() const {
    const std::string leader = "the leader at " + options_.leader.to_string();
    if (is_welcome_) {
      return leader + " said nothing for " + duration_text(options_.keep_alive.timeout()) +
             ": its node was stopped or hangs, or the network to it is cut";
    }
    return "the connection to " + leader + " broke and could not be resumed within " +
           duration_text(options_.keep_alive.reconnect_grace) +
           ": its agent was killed, or its node died";
  }

  void give_up(std::string sentence) {
    end(LeaderGone{std::move(sentence), was_welcome_, was_refused_, /*was_replaced=*/false});
  }

  // The old leader process is dead. The one at its endpoint now does not know this session.
  void leader_was_replaced() {
    end(LeaderGone{"the leader at " + options_.leader.to_string() +
                       " was started again; this node stops its workers and joins it anew",
                   true, /*was_refused=*/false, /*was_replaced=*/true});
  }

  // The session is over.
  void end(LeaderEvent event) {
    close();
    is_over_ = true;
    events_.on_event(std::move(event));
  }

  void close() {
    attempt_.reset();
    proving_.reset();
    for (const auto* timer :
         {&retry_timer_, &notice_timer_, &patience_timer_, &keep_alive_timer_, &loss_timer_}) {
      (*timer)->cancel();
    }
    if (stream_) std::exchange(stream_, nullptr)->close();
    is_welcome_ = false;
    addresses_.clear();
  }

  const std::shared_ptr<Transport> transport_;
  const RoundClientOptions options_;
  const LeaderEvents events_;

  std::unique_ptr<Attempt> attempt_;  // a name lookup or a connection
  std::unique_ptr<Attempt> proving_;  // munge makes a credential
  const std::unique_ptr<TransportTimer> retry_timer_;
  const std::unique_ptr<TransportTimer> notice_timer_;
  const std::unique_ptr<TransportTimer> patience_timer_;  // for a connection without a Welcome yet
  const std::unique_ptr<TransportTimer> keep_alive_timer_;
  const std::unique_ptr<TransportTimer> loss_timer_;

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
  std::string key_;           // of this connection's proofs: the token, or munge's secret
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

}  // namespace

std::unique_ptr<Leader> make_round_client(std::shared_ptr<Transport> transport,
                                          RoundClientOptions options, LeaderEvents events) {
  return std::make_unique<RoundClient>(std::move(transport), std::move(options), std::move(events));
}

}  // namespace ddprun::rdzv
