#include "agent/standby/channel.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <vector>

#include "rendezvous/common/descriptor_message.h"

namespace ddprun::agent {

using rdzv::UniqueFd;

namespace {

constexpr std::size_t kDescriptorsMax = 8;

}  // namespace

Result<std::pair<UniqueFd, UniqueFd>> Channel::make_pair() {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return fail(error_from_errno(errno, "socket for a standby"));
  }
  return std::pair(UniqueFd(sockets[0]), UniqueFd(sockets[1]));
}

Channel::Channel(const boost::asio::any_io_executor& executor, UniqueFd socket, Events events)
    : socket_(executor, socket.release()), events_(std::move(events)) {
  await();
}

bool Channel::send(zygote::Kind kind, std::uint32_t flags, std::string_view text,
                   std::span<const int> descriptors) {
  assert(text.size() <= zygote::kTextMax && descriptors.size() <= kDescriptorsMax);
  zygote::Header header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.pid = ::getpid();
  header.flags = flags;
  iovec parts[] = {{&header, sizeof header}, {const_cast<char*>(text.data()), text.size()}};
  rdzv::DescriptorMessage<kDescriptorsMax> message(parts);
  message.give(descriptors);
  return ::sendmsg(socket_.native_handle(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

void Channel::await() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     lifetime_.guard([this](const boost::system::error_code& ec) {
                       if (!ec) read();
                     }));
}

void Channel::read() {
  std::vector<char> packet(sizeof(zygote::Header) + zygote::kTextMax);
  const ssize_t size = ::recv(socket_.native_handle(), packet.data(), packet.size(), MSG_DONTWAIT);
  // ECONNRESET comes once, before what a process sent that has ended and left messages unread.
  if (size < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNRESET)) return await();
  zygote::Header header;
  const Events events = events_;  // these calls may destroy this object
  if (size < static_cast<ssize_t>(sizeof header)) return events.closed();
  std::memcpy(&header, packet.data(), sizeof header);
  await();
  events.message(
      header,
      std::string_view(packet.data(), static_cast<std::size_t>(size)).substr(sizeof header));
}

}  // namespace ddprun::agent
