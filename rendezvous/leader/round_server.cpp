#include "rendezvous/leader/round_server.h"

#include <utility>

#include "rendezvous/common/limits.h"
#include "rendezvous/common/random_number.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

RoundCore make_core(const RoundServerOptions& options) {
  return options.resumption ? RoundCore(options.round, *options.resumption)
                            : RoundCore(options.round);
}

}  // namespace

RoundServer::RoundServer(std::shared_ptr<Transport> transport, RoundServerOptions options,
                         LeaderEvents events, std::optional<Listener> listener)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      events_(std::move(events)),
      core_(make_core(options_)),
      liveness_(options_.keep_alive),
      leader_id_(random_number()),
      core_timer_(transport_->make_timer()),
      keep_alive_timer_(transport_->make_timer()),
      silence_timer_(transport_->make_timer()) {
  if (events_.on_core_began) {
    events_.on_core_began(options_.round, options_.resumption ? &*options_.resumption : nullptr);
  }
  if (!listener) return;
  bound_ = listener->bound;
  Admission::Events at_the_door;
  at_the_door.on_applicant = [this](Admission::Applicant each) { admit(std::move(each)); };
  at_the_door.on_turned_away = [this](NodeTurnedAway node) {
    feed({}, LinkEvent(std::move(node)));
  };
  at_the_door.on_warning = [this](std::string line) {
    events_.on_event(LeaderWarning{std::move(line)});
  };
  if (events_.takes_store_clients) {
    at_the_door.on_store_client = [this](const StreamPtr& stream, std::string received) {
      hand_to_store(stream, std::move(received));
    };
  }
  admission_.emplace(transport_, std::move(*listener), options_.proof, std::move(at_the_door));
  keep_alive();
  tell_who_may_join();
}

// Only this machine's users reach a port on loopback. A leader that continues a job is not the first to say it.
void RoundServer::tell_who_may_join() {
  if (options_.proof.wants() != wire::Wants::kNothing || options_.proof.is_waived ||
      is_loopback(bound_->host) || options_.resumption) {
    return;
  }
  transport_->post(lifetime_.guard([this] {
    const bool is_everywhere = bound_->host == "::" || bound_->host == "0.0.0.0";
    const std::string place = is_everywhere
                                  ? "port " + std::to_string(bound_->port) + " of this machine"
                                  : bound_->to_string();
    events_.on_event(LeaderWarning{
        "without a token, any host that reaches " + place +
        " can join this job, stop it or become rank 0: give every node the same --token-file=FILE, "
        "which 'ddpctl token FILE' makes, or --no-token if that is intended"});
  }));
}

// Strangers can make any number of the first kind, so these lines are rate-limited.
void RoundServer::report(const std::vector<LeaderNews>& news) {
  for (const LeaderNews& each : news) {
    if (const auto* away = std::get_if<NodeTurnedAway>(&each)) {
      if (admission_) admission_->warn("turned away " + name_of(*away) + ": " + away->why);
    } else {
      const auto* gone = std::get_if<NodeGone>(&each);
      events_.on_event(
          LeaderWarning{gone != nullptr ? describe(*gone) : describe(std::get<ToBeLeftOut>(each))});
    }
  }
}

RoundServer::~RoundServer() {
  for (auto& [id, peer] : peers_) {
    if (peer.stream) peer.stream->close();
  }
}

// ---- connections

void RoundServer::admit(Admission::Applicant applicant) {
  const std::uint64_t session = applicant.connect.session;
  const auto known = sessions_.find(session);
  if (known != sessions_.end()) {
    const NodeId id = known->second;
    if (core_.can_resume(id, session)) return resume(id, std::move(applicant));
    forget(id);
  }
  if (!applicant.connect.hello) {
    send(*applicant.stream, wire::Gone{leader_id_});
    return admission_->dismiss(applicant.stream);
  }
  const NodeId id{next_node_++};
  sessions_[session] = id;
  Peer& peer = peers_[id];
  peer.session_number = session;
  peer.resend.receive(1);  // the hello, which opens a session
  NodeHello hello = *std::move(applicant.connect.hello);
  hello.session = session;
  if (hello.address.empty()) hello.address = address_for_workers(applicant.address);
  attach(id, peer, applicant);
  feed(id, ToLeader(std::move(hello)));
  read(id, applicant.stream, {});
}

void RoundServer::resume(NodeId id, Admission::Applicant applicant) {
  Peer& peer = peers_.at(id);
  if (peer.stream) peer.stream->close();  // the agent has dropped it already
  peer.resend.confirm(applicant.connect.received);
  attach(id, peer, applicant);
  for (const auto& each : peer.resend.unconfirmed()) send(peer, each);
  feed(id, LinkEvent(NodeResumed{}));
  read(id, applicant.stream, {});
}

void RoundServer::attach(NodeId id, Peer& peer, Admission::Applicant& applicant) {
  const StreamPtr stream = applicant.stream;
  peer.stream = stream;
  peer.reader = std::move(applicant.reader);
  peer.reader.set_max_payload(limits::kMaxRoundFrameBytes);
  set_address(peer, applicant.address);
  liveness_.heard(id, transport_->now());
  send(*stream, wire::Welcome{peer.resend.received(), leader_id_, std::move(applicant.proof)});
  const std::weak_ptr<Stream> weak = stream;
  stream->start(
      {.on_bytes = [this, id, weak](std::string_view bytes) { read(id, weak.lock(), bytes); },
       .on_end = [this, id, weak](const Error&) { lose(id, weak.lock()); }});
}

void RoundServer::read(NodeId id, const StreamPtr& stream, std::string_view bytes) {
  auto found = peers_.find(id);
  if (found == peers_.end() || found->second.stream != stream) return;
  found->second.reader.append(bytes);
  for (;;) {
    const auto payload = found->second.reader.next();
    auto frame = !payload    ? Result<wire::AgentFrame>(fail(payload.error()))
                 : !*payload ? Result<wire::AgentFrame>(wire::Heartbeat{})
                             : wire::decode_agent_frame(**payload);
    if (!frame || (*payload && !take_frame(id, *frame))) {
      admission_->drop(stream, frame ? "it breaks the protocol" : frame.error().to_string());
      return lose(id, stream);
    }
    // Its message may have removed it.
    found = peers_.find(id);
    if (found == peers_.end() || found->second.stream != stream) return;
    if (!*payload) break;
  }
  if (std::exchange(found->second.owes_confirmation, false)) confirm(found->second);
}

// False: the frame breaks the protocol.
bool RoundServer::take_frame(NodeId id, wire::AgentFrame& frame) {
  Peer& peer = peers_.at(id);
  if (core_.has(id)) liveness_.heard(id, transport_->now());
  if (const auto* heartbeat = std::get_if<wire::Heartbeat>(&frame)) {
    peer.resend.confirm(heartbeat->received);
    return true;
  }
  if (auto* request = std::get_if<PeerRequest>(&frame)) return relay(id, std::move(*request)), true;
  if (auto* reply = std::get_if<PeerReply>(&frame)) return relay(id, std::move(*reply)), true;
  const auto* message = std::get_if<wire::Message<ToLeader>>(&frame);
  if (message == nullptr || std::holds_alternative<NodeHello>(message->body)) return false;
  peer.resend.confirm(message->received);
  const auto arrival = peer.resend.receive(message->number);
  if (arrival == ResendQueue<ToAgent>::Arrival::kGap) return false;
  peer.owes_confirmation = true;  // confirm at once, because an agent that exits waits for it
  if (arrival == ResendQueue<ToAgent>::Arrival::kNew) feed(id, message->body);
  return true;
}

void RoundServer::confirm(Peer& peer) {
  send(*peer.stream, wire::Heartbeat{peer.resend.received()});
}

void RoundServer::send(Stream& stream, const wire::LeaderFrame& frame) {
  stream.send(wire::encode(frame));
}

void RoundServer::send(Peer& peer, const Numbered<ToAgent>& each) {
  send(*peer.stream, wire::Message<ToAgent>{each.number, peer.resend.received(), each.message});
}

void RoundServer::lose(NodeId id, const StreamPtr& stream) {
  const auto found = peers_.find(id);
  if (found == peers_.end() || found->second.stream != stream) return;
  found->second.stream.reset();
  liveness_.forget(id);
  if (core_.has(id)) feed(id, LinkEvent(NodeDisconnected{}));
  if (!core_.has(id)) forget(id);
}

void RoundServer::set_address(Peer& peer, std::string address) {
  if (const auto old = addresses_.find(peer.address); old != addresses_.end())
    addresses_.erase(old);
  peer.address = std::move(address);
  if (!peer.address.empty()) addresses_.insert(peer.address);
}

// A node's workers connect from the same address as its agent; our own connect from the address
// they connect to.
void RoundServer::hand_to_store(const StreamPtr& stream, std::string received) {
  const std::string address = stream->peer_address();
  const bool is_ours = is_loopback(address) || address == stream->local_address();
  if (!is_ours && !addresses_.contains(address)) {
    return admission_->drop(stream, "it is a client of the store, but not from a node of this job");
  }
  events_.on_event(StoreClientArrived{stream->release(), std::move(received)});
}

// A node on our machine is reached at the same host as we are, not at its loopback address.
std::string RoundServer::address_for_workers(const std::string& seen) const {
  return is_loopback(seen) && !options_.host.empty() ? options_.host : seen;
}

// ---- requests of nodes to each other

void RoundServer::relay(NodeId from, PeerRequest request) {
  std::optional<NodeId> to = std::exchange(request.peer, from);
  if (to == kFirstNode) to = core_.first_node().value_or(kFirstNode);
  if (to) {
    if (!send_unnumbered(*to, request)) send_unnumbered(from, PeerReply{request.id, *to, {}});
    return;
  }
  send_unnumbered(from, PeerAck{request.id, from, core_.view(time())});
  if (from != kOwnNode) send_unnumbered(kOwnNode, request);
  for (const auto& [id, peer] : peers_) {
    if (id != from) send_unnumbered(id, request);
  }
}

void RoundServer::relay(NodeId from, PeerReply reply) {
  const NodeId to = std::exchange(reply.peer, from);
  send_unnumbered(to, std::move(reply));
}

// False: there is no such node. A node that does not read is skipped, and shows as late.
bool RoundServer::send_unnumbered(NodeId to, wire::LeaderFrame frame) {
  if (to == kOwnNode) {
    if (!core_.has(kOwnNode)) return false;
    transport_->post(lifetime_.guard(
        [this, frame = std::move(frame)]() mutable { pass_on(std::move(frame), events_); }));
    return true;
  }
  const auto found = peers_.find(to);
  if (found == peers_.end() || !found->second.stream) return false;
  Stream& stream = *found->second.stream;
  if (stream.unsent() <= limits::kMaxUnreadAnswerBytes) send(stream, frame);
  return true;
}

// ---- the core

void RoundServer::feed(NodeId node, decltype(RoundInput::what) what) {
  const RoundInput input{time(), node, std::move(what)};
  auto messages = core_.step(input);
  if (events_.on_core_step) events_.on_core_step(input, messages);
  if (!core_.news().empty())
    transport_->post(lifetime_.guard([this, news = core_.news()] { report(news); }));
  if (options_.write_ahead) return release(options_.write_ahead(core_, std::move(messages)));
  release({std::move(messages), false});
}

// Messages to our own node are delivered in a later turn of the loop.
void RoundServer::release(RoundServerOptions::Passed passed) {
  for (ToNode& each : passed.messages) {
    if (each.to == kOwnNode) {
      transport_->post(lifetime_.guard([this, message = std::move(each.message)]() mutable {
        events_.on_event(std::move(message));
      }));
    } else {
      send(each.to, std::move(each.message));
    }
  }
  time_.set_paused(passed.is_holding, transport_->now());
  arm_timer();
}

void RoundServer::send(NodeId to, ToAgent message) {
  const auto found = peers_.find(to);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  const auto& numbered = peer.resend.send(std::move(message));
  peer.owes_confirmation = false;
  if (peer.stream) send(peer, numbered);
  if (is_last(numbered.message)) forget(to);
}

void RoundServer::forget(NodeId id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) return;
  liveness_.forget(id);
  sessions_.erase(found->second.session_number);
  set_address(found->second, "");
  const StreamPtr stream = std::move(found->second.stream);
  peers_.erase(found);
  if (stream) admission_->dismiss(stream);
}

void RoundServer::arm_timer() {
  const auto deadline = core_.deadline();
  if (!deadline || time_.is_paused()) return core_timer_->cancel();
  core_timer_->at(time_.real(*deadline), [this] { feed({}, Tick{}); });
}

void RoundServer::keep_alive() {
  for (auto& [id, peer] : peers_) {
    if (peer.stream) confirm(peer);
  }
  drop_the_silent();
  keep_alive_timer_->at(transport_->now() + options_.keep_alive.interval, [this] { keep_alive(); });
}

// Called at every interval, so that a pause of our own process is noticed, and when a node becomes
// due.
void RoundServer::drop_the_silent() {
  for (const NodeId id : liveness_.take_silent(transport_->now())) {
    feed(id, LinkEvent(NodeSilent{}));
  }
  const auto next = liveness_.next_silent_at();
  if (next) silence_timer_->at(*next, [this] { drop_the_silent(); });
}

}  // namespace ddprun::rdzv
