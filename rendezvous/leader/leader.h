// The leader of the job as an agent sees it, wherever it is: in this process (round_server.h) or at
// the end of a connection (round_client.h). Its messages come through on_event, never from within a
// call of a member, so that callers are never re-entered. Everything happens on the thread that
// runs the io_context.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/round/peer_requests.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {

struct RoundConfig;
struct Resumption;
struct RoundInput;
struct ToNode;

struct LeaderGone {
  std::string sentence;      // what happened, and what to check; for the user
  bool was_reached = false;  // false: it was never reached
  bool was_refused = false;  // nobody listens at its port any more
  // Another process leads now, or will: join() again to take part under it. The sentence is empty:
  // the user has been told already.
  bool was_replaced = false;
};

struct LeaderNotice {  // a line for the user, while the node waits
  std::string line;
};
struct LeaderWarning {  // a line about a node that is lost, or a client that was turned away
  std::string line;
};
// A connection to the leader's port from a node of the job that speaks the store's protocol, and
// the bytes that were read.
struct StoreClientArrived {
  UniqueFd socket;
  std::string received;
};

// Everything that comes from the leader. Nothing comes after LeaderGone until join(). Requests of
// other nodes, and replies to our own, are only for owners that handle them.
using LeaderEvent = std::variant<ToAgent, LeaderGone, LeaderNotice, LeaderWarning, PeerRequest,
                                 PeerReply, PeerAck, StoreClientArrived>;

struct LeaderEvents {
  std::function<void(LeaderEvent)> on_event;
  bool takes_store_clients = false;  // false: such connections are closed
  // The start and each step of the RoundCore, while it is in this process: for the recorder; not
  // set: nothing is recorded. The Resumption may be null.
  std::function<void(const RoundConfig&, const Resumption*)> on_core_began;
  std::function<void(const RoundInput&, const std::vector<ToNode>&)> on_core_step;
};

// Whether nothing follows this message: the node is no part of the job, or no longer.
inline bool is_last(const ToAgent& message) {
  return std::holds_alternative<Refused>(message) || std::holds_alternative<DeclaredLost>(message);
}

// Gives the owner a frame between nodes; false: it is another one.
template <typename Frame>
bool pass_on(Frame frame, const LeaderEvents& events) {
  return std::visit(
      [&]<typename T>(T& each) {
        constexpr bool kIsBetweenNodes = std::is_constructible_v<LeaderEvent, T>;
        if constexpr (kIsBetweenNodes) events.on_event(std::move(each));
        return kIsBetweenNodes;
      },
      frame);
}

class Leader {
 public:
  virtual ~Leader() = default;

  // Joins the job, for the first time or again.
  virtual void join(NodeHello hello) = 0;
  virtual void tell(const ToLeader& message) = 0;

  // To other nodes, through the leader (peer_requests.h). A request that cannot be passed on now is
  // lost.
  virtual void ask(PeerRequest question) = 0;
  virtual void answer(PeerReply answer) = 0;

  // Called after this node has ended: whether the process may exit: every peer that learns of the
  // end from it has been told.
  virtual bool may_exit() = 0;

  // Whether the leader is in this process. Under etcd that may change.
  virtual bool is_here() const = 0;

  // Numeric; the address at which other nodes that are connected to the leader can reach this node.
  virtual std::string local_address() const = 0;
};

}  // namespace ddprun::rdzv
