// The socket at which ddpctl reaches a running job from any shell of its user on this node: a line
// of JSON is a request, the answers are lines of JSON (agent/README.md has the protocol). Only the
// job's own user and root are let in, which the kernel says, not they.
//
// Owned by the supervisor, event loop only. Nobody here can hold up the job: what is not read
// is dropped with its reader, requests are short, and there are only so many clients, each with one
// question under way. The mistake to
// avoid: answering from within a request's handler for long; everything else waits meanwhile.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "agent/query/control_folder.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/connection.h"

namespace ddprun::agent {

// One client. Whoever answers it later keeps it; nothing reaches one that is gone.
class ControlClient : public std::enable_shared_from_this<ControlClient> {
 public:
  ControlClient(const boost::asio::any_io_executor& executor, rdzv::UniqueFd socket);

  // With its end. A client that reads too slowly is dropped.
  void send(std::string_view line);
  // When what was sent is read, it is the end.
  void finish() { connection_->finish_sending(); }
  bool is_open() const { return connection_->is_open(); }
  // What it was sent and has not read, beyond what the kernel holds for it.
  std::size_t unread() const { return connection_->unsent(); }
  // As long as this client is there: a subscription.
  void keep(std::shared_ptr<void> subscription) { kept_ = std::move(subscription); }

  bool is_awaiting_status = false;  // each client waits for one at a time

 private:
  friend class ControlSocket;
  std::shared_ptr<rdzv::Connection> connection_;
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
  // Removes it from the folder.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

  const std::string& path() const { return path_; }

 private:
  ControlSocket(boost::asio::io_context& io, rdzv::UniqueFd folder, BoundControl bound,
                std::string path, OnRequest on_request);

  void accept();
  void accept_later();
  void admit(rdzv::UniqueFd socket);
  void read(const ClientPtr& client, std::string_view bytes);
  void drop(const ClientPtr& client);

  boost::asio::io_context& io_;
  const rdzv::UniqueFd folder_;
  const std::string name_;
  const std::string path_;
  const OnRequest on_request_;
  boost::asio::posix::stream_descriptor listener_;
  boost::asio::steady_timer pause_;
  std::set<ClientPtr> clients_;

  struct Life {};  // handlers that are under way end with it
  std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

}  // namespace ddprun::agent
