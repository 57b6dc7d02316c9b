// The leader of the job as an agent sees it, wherever it is: in this process (round_server.h) or at
// the end of a connection (round_client.h). What it says comes through on_message, never from within
// one of the calls here, so that nothing is decided inside of another decision. Everything happens
// on the thread that runs the io_context.
#pragma once

#include <functional>
#include <string>
#include <string_view>
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

struct LeaderEvents {
  std::function<void(ToAgent)> on_message;
  std::function<void(LeaderGone)> on_gone;           // nothing comes after it until join()
  std::function<void(std::string_view)> on_notice;   // a line for people, while they wait
  std::function<void(std::string_view)> on_warning;  // who was turned away; seldom
  // Questions of other nodes, and answers to own ones. None: they are not for this process.
  std::function<void(PeerRequest)> on_question;
  std::function<void(PeerReply)> on_answer;
  std::function<void(PeerAck)> on_asked;
  // The RoundCore, while it is in this process: it begins, and each of its steps. For who records
  // them. The Resumption may be null.
  std::function<void(const RoundConfig&, const Resumption*)> on_core_began;
  std::function<void(const RoundInput&, const std::vector<ToNode>&)> on_core_step;
  // A connection to the leader's port from a node of the job that speaks the store's protocol, and
  // what was read of it. None: such a connection is closed.
  std::function<void(UniqueFd, std::string)> on_store_client;
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
