// One client of the store server: its socket, what has arrived of its next request, and the replies
// that it has not read yet. Owned by the server's loop, used on its thread; makes no decisions.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/net/socket_address.h"
#include "rendezvous/store/store_core.h"
#include "rendezvous/store_wire/reply_queue.h"
#include "rendezvous/store_wire/store_decoder.h"

namespace ddprun::rdzv {

struct StoreConnection {
  static constexpr std::size_t kPartsAtOnce = 16;

  UniqueFd socket;
  ClientId client = 0;
  wire::RequestDecoder decoder;
  std::unique_ptr<wire::ReplyQueue> unsent;  // only while the client reads more slowly than it asks
  std::size_t held_bytes = 0;                // counted by the store
  std::chrono::steady_clock::time_point asked_at = {};  // its last request came
  bool is_finished = false;  // it will send nothing more; close when all replies are sent
  // Received bytes that are not processed until the client has read its replies: it is paused
  // meanwhile, and nothing more is received. (Null for nearly all clients.)
  std::unique_ptr<std::string> backlog;

  bool is_paused() const { return backlog != nullptr; }
  std::size_t bytes_in_memory() const {
    return decoder.held_bytes() + (unsent ? unsent->held_bytes() : 0) +
           (backlog ? backlog->capacity() : 0);
  }

  // Port 0: it is gone.
  Endpoint peer() const {
    SocketAddress peer;
    if (::getpeername(socket.get(), &peer.any, &peer.size) != 0) return {};
    return {numeric_host(peer), peer.port()};
  }
  std::string peer_name() const {
    const Endpoint found = peer();
    return found.port == 0 ? "a client that is gone" : found.to_string();
  }

  // Sends as much of `replies` as the socket accepts now. False: the connection is broken.
  bool flush(wire::ReplyQueue& replies) {
    while (!replies.empty()) {
      std::array<std::string_view, kPartsAtOnce> parts;
      const std::size_t count = replies.gather(parts);
      const ssize_t sent =
          count == 1 ? ::send(socket.get(), parts[0].data(), parts[0].size(), MSG_NOSIGNAL)
                     : send_parts(socket.get(), std::span(parts).first(count));
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      replies.consume(static_cast<std::size_t>(sent));
    }
    return true;
  }

  static ssize_t send_parts(int fd, std::span<const std::string_view> parts) {
    std::array<iovec, kPartsAtOnce> vectors;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      vectors[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
    }
    msghdr message{};
    message.msg_iov = vectors.data();
    message.msg_iovlen = parts.size();
    return ::sendmsg(fd, &message, MSG_NOSIGNAL);
  }
};

}  // namespace ddprun::rdzv
