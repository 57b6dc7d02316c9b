#include "rendezvous/store/store_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <span>
#include <string_view>

#include "rendezvous/common/endpoint.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kPartsAtOnce = 16;

ssize_t send_parts(int fd, std::span<const std::string_view> parts) {
  std::array<iovec, kPartsAtOnce> vectors;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    vectors[i] = {const_cast<char*>(parts[i].data()), parts[i].size()};
  }
  msghdr message{};
  message.msg_iov = vectors.data();
  message.msg_iovlen = parts.size();
  return ::sendmsg(fd, &message, MSG_NOSIGNAL);
}

}  // namespace

std::size_t StoreConnection::bytes_in_memory() const {
  return decoder.held_bytes() + (unsent ? unsent->held_bytes() : 0) +
         (backlog ? backlog->capacity() : 0);
}

std::string StoreConnection::peer_name() const {
  SocketAddress peer;
  if (::getpeername(socket.get(), &peer.any, &peer.size) != 0) return "a client that is gone";
  return Endpoint{numeric_host(peer), peer.port()}.to_string();
}

bool StoreConnection::flush(wire::ReplyQueue& replies) {
  while (!replies.empty()) {
    std::array<std::string_view, kPartsAtOnce> parts;
    const std::size_t count = replies.gather(parts);
    const ssize_t sent = count == 1
                             ? ::send(socket.get(), parts[0].data(), parts[0].size(), MSG_NOSIGNAL)
                             : send_parts(socket.get(), std::span(parts).first(count));
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    replies.consume(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace ddprun::rdzv
