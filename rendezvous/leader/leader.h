// The leader of the job as an agent sees it, wherever it is: in this process (round_server.h) or at
// the end of a connection (round_client.h). What it says comes through on_event, never from within
// one of the calls here, so that nothing is decided inside of another decision. Everything happens
// on the thread that runs the io_context.
#pragma once

#include <functional>
#include <string>
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
  std::string sentence;      // what happened, and what to check
  bool was_reached = false;  // false: it was never there
  bool was_refused = false;  // at its port nobody listens any more
  // Another process leads now, or will: join() again to take part in what it leads. No sentence:
  // the user was told already.
  bool was_replaced = false;
};

struct LeaderNotice {  // a line for people, while they wait
  std::string line;
};
struct LeaderWarning {  // who was turned away; seldom
  std::string line;
};
// A connection to the leader's port from a node of the job that speaks the store's protocol, and
// what was read of it.
struct StoreClientArrived {
  UniqueFd socket;
  std::string received;
};

// All that comes from the leader. Nothing comes after LeaderGone until join(). Questions of other
// nodes, and answers to own ones, are only for who takes part in them.
using LeaderEvent = std::variant<ToAgent, LeaderGone, LeaderNotice, LeaderWarning, PeerRequest,
                                 PeerReply, PeerAck, StoreClientArrived>;

struct LeaderEvents {
  std::function<void(LeaderEvent)> on_event;
  bool takes_store_clients = false;  // else such connections are closed
  // The RoundCore, while it is in this process: it begins, and each of its steps. For who records
  // them; none: nobody does. The Resumption may be null.
  std::function<void(const RoundConfig&, const Resumption*)> on_core_began;
  std::function<void(const RoundInput&, const std::vector<ToNode>&)> on_core_step;
};

class Leader {
 public:
  Leader() = default;
  virtual ~Leader() = default;
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  // Takes part, from now on or anew.
  virtual void join(NodeHello hello) = 0;
  virtual void tell(const ToLeader& message) = 0;

  // To other nodes, through the leader (peer_requests.h). What cannot be passed on now is lost.
  virtual void ask(PeerRequest question) = 0;
  virtual void answer(PeerReply answer) = 0;

  // This node has ended: whether nobody needs it any more, who would not learn of the end.
  virtual bool may_exit() = 0;

  // It is in this process. Under etcd that may change.
  virtual bool is_here() const = 0;

  // Numeric; where others who reach the leader, or are reached by it, can reach this node.
  virtual std::string local_address() const = 0;
};

}  // namespace ddprun::rdzv
