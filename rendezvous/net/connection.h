// A Stream (transport.h) over a socket: reads what arrives, queues what cannot be sent yet, and
// reports its end once. Everything happens on the thread of its io_context.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

class Connection final : public Stream, public std::enable_shared_from_this<Connection> {
 public:
  // A connected, non-blocking socket.
  Connection(const boost::asio::any_io_executor& executor, UniqueFd socket);

  void start(Events events) override;
  void send(std::string_view bytes) override;
  void finish_sending() override;
  void close() override;
  UniqueFd release() override;

  std::size_t unsent() const override { return unsent_.size(); }
  bool is_open() const override { return socket_.is_open(); }
  std::string local_address() override;
  std::string peer_address() override;

 private:
  void await_bytes();
  void read();
  void await_room();
  void write();
  void end(const Error& error);

  boost::asio::posix::stream_descriptor socket_;
  std::shared_ptr<const Events> events_;  // null: not started, or ended
  std::string unsent_;
  bool awaits_room_ = false;
  bool is_finished_ = false;
};

}  // namespace ddprun::rdzv
