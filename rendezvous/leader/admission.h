// The leader's door: accepts connections at its port, and finds out who they are. Whoever speaks the
// round protocol, in our version, knows the token and says Connect, is handed to the leader; clients
// of the store are handed to the store, where the port is the store's too; the others are turned
// away, with at most one line a second in the log.
//
// A connection that is pending has little memory (limits::kMaxConnectBytes), little time, and
// there are not many of them: the oldest goes first. So no number of them keeps out who has
// something to say. Everything happens on the transport's thread.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/clock.h"
#include "rendezvous/net/transport.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {

class Admission {
 public:
  struct Applicant {
    StreamPtr stream;          // to be started by its new owner
    wire::FrameReader reader;  // with what came after the Connect
    wire::Connect connect;
    std::string address;  // numeric
    std::string proof;    // the leader's, for its Welcome; empty: there is no token
  };
  struct Events {
    std::function<void(Applicant)> on_applicant;
    // With what was read of it. None: turned away.
    std::function<void(const StreamPtr&, std::string)> on_store_client;
    std::function<void(std::string)> on_warning;
  };

  Admission(std::shared_ptr<Transport> transport, Listener listener, std::string token,
            Events events);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Of whom nothing more is wanted: waits until the other side has read what was said, and closed.
  void dismiss(const StreamPtr& stream);
  // Who breaks the protocol.
  void drop(const StreamPtr& stream, const std::string& why);

 private:
  struct PendingConnection;
  using PendingPtr = std::shared_ptr<PendingConnection>;

  void take(const StreamPtr& stream);
  bool free_descriptor();
  void add(const PendingPtr& pending);
  void remove(const PendingPtr& pending);
  void turn_away(const PendingPtr& pending, const std::string& why);
  void sweep();
  void part_from(const PendingPtr& pending);
  void warn(const std::string& line);

  void read(const PendingPtr& pending);
  void take_opening(const PendingPtr& pending);
  void take_connect(const PendingPtr& pending);

  const std::shared_ptr<Transport> transport_;
  const std::string token_;
  const Events events_;
  const std::unique_ptr<Timer> sweep_timer_;
  std::list<PendingPtr> pending_;  // the oldest first
  const std::size_t pending_max_;
  std::optional<CoreTime> last_warning_;
  int warnings_left_out_ = 0;
  bool has_told_of_shortage_ = false;
  std::unique_ptr<Acceptor> acceptor_;  // last: it uses the others
};

}  // namespace ddprun::rdzv
