// One TCP connection of the round protocol, either end: reads what arrives, queues what cannot be
// sent yet, and says once that it has ended. Held by a shared_ptr; everything happens on the thread
// of its io_context. Nothing is called back from within send() or close(), and nothing after
// close().
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::rdzv {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Events {
    std::function<void(std::string_view)> on_bytes;
    std::function<void(const Error&)> on_end;
  };

  Connection(const boost::asio::any_io_executor& executor, UniqueFd socket);

  // Of a connected, non-blocking socket. Called again: whoever takes over.
  void start(Events events);
  // What the other side leaves unread beyond a bound ends the connection.
  void send(std::string_view bytes);
  // Says that nothing more comes; the other side's end is still waited for.
  void finish_sending();
  void close();
  // The socket, for another owner; closed for this one.
  UniqueFd release();

  // What the other side has left unread, beyond what the kernel holds for it.
  std::size_t unsent() const { return unsent_.size(); }
  bool is_open() const { return socket_.is_open(); }
  // Numeric; empty when it has ended.
  std::string local_address();
  std::string peer_address();

 private:
  void await_bytes();
  void read();
  void await_room();
  void write();
  void end(const Error& error);

  boost::asio::posix::stream_descriptor socket_;
  std::shared_ptr<const Events> events_;  // none: not started, or ended
  std::string unsent_;
  bool awaits_room_ = false;
  bool is_finished_ = false;
};

}  // namespace ddprun::rdzv
