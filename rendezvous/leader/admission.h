// The leader's door: accepts connections at its port, and finds out who they are. Whoever speaks the
// round protocol, in our version, knows the token and says Connect, is handed to the leader; clients
// of the store are handed to the store, where the port is the store's too; the others are turned
// away, with at most one line a second in the log.
//
// A connection that is nobody's yet has little memory (limits::kMaxConnectBytes), little time, and
// there are not many of them: the oldest goes first. So no number of them keeps out who has
// something to say. Everything happens on the thread that runs the io_context.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/connection.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/round/round_wire.h"

namespace ddprun::rdzv {

class Admission {
 public:
  struct Applicant {
    std::shared_ptr<Connection> connection;  // to be started by its new owner
    wire::FrameReader reader;                // with what came after the Connect
    wire::Connect connect;
    std::string address;  // numeric
    std::string proof;    // the leader's, for its Welcome; empty: there is no token
  };
  struct Events {
    std::function<void(Applicant)> on_applicant;
    // With what was read of it. None: turned away.
    std::function<void(const std::shared_ptr<Connection>&, std::string)> on_store_client;
    std::function<void(std::string)> on_warning;
  };

  Admission(boost::asio::io_context& io, UniqueFd listening, std::string token, Events events);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Of whom nothing more is wanted: waits until the other side has read what was said, and closed.
  void dismiss(const std::shared_ptr<Connection>& connection);
  // Who breaks the protocol.
  void drop(const std::shared_ptr<Connection>& connection, const std::string& why);

 private:
  struct Nobody;
  using NobodyPtr = std::shared_ptr<Nobody>;

  void await_connections();
  void accept_connections();
  void await_descriptors();
  void add(const NobodyPtr& nobody);
  void remove(const NobodyPtr& nobody);
  void turn_away(const NobodyPtr& nobody, const std::string& why);
  void sweep();
  void part_from(const NobodyPtr& nobody);
  void warn(const std::string& line);

  void read(const NobodyPtr& nobody);
  void take_opening(const NobodyPtr& nobody);
  void take_connect(const NobodyPtr& nobody);

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor listening_;
  const std::string token_;
  const Events events_;
  boost::asio::steady_timer sweep_timer_;
  boost::asio::steady_timer accept_timer_;
  std::list<NobodyPtr> nobodies_;  // the oldest first
  const std::size_t nobodies_max_;
  std::optional<std::chrono::steady_clock::time_point> last_warning_;
  int warnings_left_out_ = 0;
  bool has_told_of_shortage_ = false;

  struct Life {};  // handlers that are under way end with it
  std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

}  // namespace ddprun::rdzv
