// The socket by which ddpctl reaches a running job. A line of JSON is a request; answers are lines
// of JSON (agent/README.md has the protocol). Only the job's own user and root are admitted, as the
// kernel identifies them.
//
// Owned by the ControlService, event loop only. No client can delay the job: one that does not read
// is dropped, and requests and clients are limited. A request's handler must return soon.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "agent/loop/timer.h"
#include "agent/query/control_folder.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/lifetime.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/transport.h"

namespace ddprun::agent {

// One client. Keep it to answer later; sending to a client that is gone does nothing.
class ControlClient {
 public:
  explicit ControlClient(rdzv::StreamPtr connection) : connection_(std::move(connection)) {}

  // `line` includes its end. A client that reads too slowly is dropped.
  void send(std::string_view line) { connection_->send(line); }
  bool is_open() const { return connection_->is_open(); }
  // Bytes that were sent and are not read yet, without those in the kernel's buffer.
  std::size_t unread() const { return connection_->unsent(); }
  // Kept as long as this client: a subscription.
  void keep(std::shared_ptr<void> subscription) { kept_ = std::move(subscription); }

  bool is_awaiting_status = false;  // a client may wait for one at a time

 private:
  friend class ControlSocket;
  rdzv::StreamPtr connection_;
  std::string received_;
  std::shared_ptr<void> kept_;
};

class ControlSocket {
 public:
  using ClientPtr = std::shared_ptr<ControlClient>;
  using OnRequest = std::function<void(const ClientPtr&, std::string_view line)>;

  static Result<std::unique_ptr<ControlSocket>> open(boost::asio::io_context& io,
                                                     const Environment& environment,
                                                     std::string_view run_id, OnRequest on_request);
  // Removes the socket from the folder.
  ~ControlSocket();

  const std::string& path() const { return path_; }

 private:
  ControlSocket(boost::asio::io_context& io, rdzv::UniqueFd folder, BoundControl bound,
                std::string path, OnRequest on_request);

  void accept();
  void admit(rdzv::UniqueFd socket);
  void read(const ClientPtr& client, std::string_view bytes);
  void drop(const ClientPtr& client);

  boost::asio::io_context& io_;
  const rdzv::UniqueFd folder_;
  const std::string name_;
  const std::string path_;
  const OnRequest on_request_;
  boost::asio::posix::stream_descriptor listener_;
  Timer pause_;
  std::set<ClientPtr> clients_;

  const rdzv::Lifetime lifetime_;
};

}  // namespace ddprun::agent
