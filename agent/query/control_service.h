// Answers the requests of the control socket, which come from ddpctl (agent/README.md has the
// table); a stop or a restart is passed on to the leader. If the socket cannot be made, the node
// runs its job without it. Owned by QueryPort, event loop only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agent/query/control_socket.h"
#include "agent/query/job_query.h"
#include "agent/query/log_follower.h"
#include "agent/query/log_reader.h"

namespace ddprun::agent {

class ControlService {
 public:
  struct Access {
    JobQuery& query;
    LogReader& logs;
    std::function<Result<void>()> stop;      // the whole job
    std::function<Result<Round>()> restart;  // returns the round that will end
  };
  ControlService(boost::asio::io_context& io, std::string key, std::string run_id, Access access);

  Result<void> open(const Environment& environment);
  // Somebody follows logs.
  bool has_followers() const;
  // At the end: who follows logs is sent the last of them; then the event loop calls `done`.
  void finish(std::function<void()> done);
  std::string path() const { return socket_ ? socket_->path() : ""; }

 private:
  using ClientPtr = ControlSocket::ClientPtr;

  void on_request(const ClientPtr& client, std::string_view line);
  void tell_who(const ClientPtr& client) const;
  void tell_events(const ClientPtr& client, bool past, bool follow);
  void tell_logs(const ClientPtr& client, std::string_view line, bool follows);

  boost::asio::io_context& io_;
  const std::string key_;
  const std::string run_id_;
  const Access access_;
  std::unique_ptr<ControlSocket> socket_;
  std::vector<std::weak_ptr<LogFollower>> followers_;
  std::shared_ptr<std::function<void()>> finished_;
};

}  // namespace ddprun::agent
