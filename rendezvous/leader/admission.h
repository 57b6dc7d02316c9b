// Accepts connections at the leader's port and identifies them. A client that speaks our version of
// the round protocol, proves what the leader wants and sends Connect is handed to the leader; a client of the
// store is handed to the store, if the port is the store's too; all others are closed, with at most
// one line a second in the log. The leader learns of those that are nodes of some job.
//
// A pending connection has a memory limit (limits::kMaxConnectBytes) and a time limit, and their
// number is limited: when there are too many, the oldest is closed. So no number of silent clients
// can keep out a node. Everything happens on the transport's thread, except that munge's credentials
// are read beside it, one after the other.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/common/clock.h"
#include "rendezvous/leader/node_proof.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/round_wire.h"
#include "rendezvous/round/turned_away.h"

namespace ddprun::rdzv {

class Admission {
 public:
  struct Applicant {
    StreamPtr stream;          // its new owner must start it
    wire::FrameReader reader;  // holds the bytes after the Connect
    wire::Connect connect;
    std::string address;  // numeric
    std::string proof;    // the leader's, for the Welcome; empty if there is no token
  };
  struct Events {
    std::function<void(Applicant)> on_applicant;
    // With the bytes that were read. Not set: clients of the store are turned away.
    std::function<void(const StreamPtr&, std::string)> on_store_client;
    std::function<void(NodeTurnedAway)> on_turned_away;
    std::function<void(std::string)> on_warning;
  };

  Admission(std::shared_ptr<Transport> transport, Listener listener, NodeProof proof,
            Events events);
  ~Admission();

  // Ends a connection in good order: waits until the other side has read everything and closed.
  void dismiss(const StreamPtr& stream);
  // Closes a connection that breaks the protocol.
  void drop(const StreamPtr& stream, const std::string& why);
  // A line in the log, unless there was one less than a second ago: then the next one counts it.
  void warn(const std::string& line);

 private:
  struct PendingConnection;
  using PendingPtr = std::shared_ptr<PendingConnection>;

  void take(const StreamPtr& stream);
  bool free_descriptor();
  PendingPtr add(const StreamPtr& stream);
  void remove(const PendingPtr& pending);
  void turn_away(const PendingPtr& pending, const std::string& why);
  void sweep();
  void part_from(const PendingPtr& pending);

  void read(const PendingPtr& pending);
  void take_opening(const PendingPtr& pending);
  void take_connect(const PendingPtr& pending);
  void check_next_credential();
  void check_contents(const PendingPtr& pending, const Result<std::string>& contents);
  void reject(const PendingPtr& pending, const std::string& why, const std::string& sentence);
  void admit(const PendingPtr& pending, std::string proof);

  const std::shared_ptr<Transport> transport_;
  const NodeProof proof_;
  const Events events_;
  const std::unique_ptr<TransportTimer> sweep_timer_;
  std::list<PendingPtr> pending_;  // the oldest first
  const std::size_t pending_max_;
  std::optional<CoreTime> last_warning_;
  int warnings_left_out_ = 0;
  bool has_told_of_shortage_ = false;
  std::deque<std::weak_ptr<PendingConnection>> unchecked_;  // the first one is being checked
  std::unique_ptr<Attempt> checking_;
  std::unique_ptr<Attempt> accepting_;  // last: it uses the others
};

}  // namespace ddprun::rdzv
