#include "worker_lib/shm/shm_handshake.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <utility>

#include "ddprun/error.h"
#include "rendezvous/common/descriptor_message.h"

namespace ddprun::shm {
namespace {

constexpr std::size_t kCookieDigits = 32;
constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC;

// What a rank that connects sends first.
struct Hello {
  std::array<char, kCookieDigits> cookie{};
  std::int32_t index = 0;
};

// Until `fd` can be read; false at the deadline.
bool await(int fd, const Patience& patience) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        patience.until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd polled[] = {{fd, POLLIN, 0}, {patience.stop, POLLIN, 0}};
    const int ready =
        ::poll(polled, std::size(polled),
               static_cast<int>(std::min<std::int64_t>(left.count(), std::int64_t{1} << 30)));
    if (ready > 0 && polled[1].revents != 0) {
      throw Failure(ErrorCode::kClosed, "the ranks of this node need not wait for each other");
    }
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

ucred peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    throw Failure(error_from_errno(errno, "asking who is at the other end of a Unix socket"));
  }
  return peer;
}

[[noreturn]] void went_away(pid_t pid) {
  throw Failure(ErrorCode::kClosed, "process " + std::to_string(pid) +
                                        " went away while the ranks of its node made their group");
}

[[noreturn]] void is_silent(pid_t pid) {
  throw Failure(ErrorCode::kTimeout,
                "process " + std::to_string(pid) +
                    " said nothing in time while the ranks of its node made their group");
}

}  // namespace

Listener::Listener() : listener_(::socket(AF_UNIX, kKind, 0)) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  // An address without a path: the kernel chooses a free one, '\0' and five hexadecimal digits.
  if (!listener_ ||
      ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(sa_family_t)) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0) {
    throw Failure(error_from_errno(errno, "opening a Unix socket"));
  }
  socklen_t size = sizeof name;
  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size);
  unsigned long random[2];
  if (::getrandom(random, sizeof random, 0) != sizeof random) {
    throw Failure(error_from_errno(errno, "getrandom"));
  }
  std::array<char, kCookieDigits + 1> cookie{};
  std::snprintf(cookie.data(), cookie.size(), "%016lx%016lx", random[0], random[1]);
  cookie_ = cookie.data();
  const std::string path(name.sun_path + 1, size - sizeof(sa_family_t) - 1);
  address_ = path + ":" + std::to_string(::getpid()) + ":" + cookie_;
}

Handshake::Handshake(std::vector<Member> others, bool is_host, Patience patience)
    : others_(std::move(others)), is_host_(is_host), patience_(patience) {}

Handshake Handshake::accept(const Listener& listener, int size, Patience patience) {
  std::vector<Member> others(static_cast<std::size_t>(size) - 1);
  for (std::size_t came = 0; came < others.size();) {
    if (!await(listener.listener_.get(), patience)) {
      throw Failure(ErrorCode::kTimeout, "only " + std::to_string(came) + " of " +
                                             std::to_string(others.size()) +
                                             " ranks of this node came for its shared memory");
    }
    rdzv::UniqueFd peer_socket(::accept4(listener.listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer_socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      throw Failure(error_from_errno(errno, "letting in a rank of this node"));
    }
    const ucred peer = peer_of(peer_socket.get());
    if (peer.uid != ::geteuid()) continue;
    Hello hello;
    if (!await(peer_socket.get(), patience)) continue;
    if (::recv(peer_socket.get(), &hello, sizeof hello, 0) != sizeof hello ||
        std::string_view(hello.cookie.data(), kCookieDigits) != listener.cookie_) {
      continue;
    }
    if (hello.index < 1 || hello.index >= size) continue;
    Member& member = others[static_cast<std::size_t>(hello.index) - 1];
    if (member.connection) continue;
    member = {std::move(peer_socket), peer.pid};
    ++came;
  }
  return Handshake(std::move(others), true, patience);
}

Handshake Handshake::connect(const std::string& address, int index, Patience patience) {
  const std::size_t first = address.find(':');
  const std::size_t second = address.find(':', first + 1);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (first >= sizeof name.sun_path || second == std::string::npos ||
      address.size() != second + 1 + kCookieDigits) {
    throw Failure(ErrorCode::kProtocol, "'" + address + "' is no address of shared memory");
  }
  const std::string process = address.substr(first + 1, second - first - 1);
  address.copy(name.sun_path + 1, first);
  Hello hello{.index = index};
  address.copy(hello.cookie.data(), kCookieDigits, second + 1);
  rdzv::UniqueFd host(::socket(AF_UNIX, kKind, 0));
  if (!host || ::connect(host.get(), reinterpret_cast<const sockaddr*>(&name),
                         static_cast<socklen_t>(sizeof(sa_family_t) + 1 + first)) != 0) {
    throw Failure(
        error_from_errno(errno, "reaching the rank of this node that has made the memory"));
  }
  const ucred peer = peer_of(host.get());
  if (peer.uid != ::geteuid() || std::to_string(peer.pid) != process) {
    throw Failure(ErrorCode::kPermissionDenied,
                  "process " + std::to_string(peer.pid) + " of user " + std::to_string(peer.uid) +
                      " answers where process " + process + " should");
  }
  if (::send(host.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    went_away(peer.pid);
  }
  std::vector<Member> others;
  others.push_back({std::move(host), peer.pid});
  return Handshake(std::move(others), false, patience);
}

// An invalid one is a message without a descriptor.
void Handshake::send_memory(const rdzv::UniqueFd& memory) {
  char byte = 'm';
  iovec bytes[] = {{&byte, 1}};
  rdzv::DescriptorMessage<1> message(bytes);
  const int sent = memory.get();
  message.give({&sent, std::size_t{sent >= 0}});
  for (const auto& [connection, pid] : others_) {
    if (::sendmsg(connection.get(), &message.header, MSG_NOSIGNAL) != 1) went_away(pid);
  }
}

rdzv::UniqueFd Handshake::receive_memory() {
  const Member& host = others_.front();
  if (!await(host.connection.get(), patience_)) is_silent(host.pid);
  char byte = 0;
  iovec bytes[] = {{&byte, 1}};
  rdzv::DescriptorMessage<1> message(bytes);
  if (::recvmsg(host.connection.get(), &message.header, MSG_CMSG_CLOEXEC) == 1) {
    auto taken = message.taken();
    if (taken.size() == 1) return std::move(taken.front());
  }
  throw Failure(ErrorCode::kClosed,
                "process " + std::to_string(host.pid) + " gave out no shared memory");
}

std::string Handshake::agree(const std::string& error) {
  if (!is_host_) {
    send_text(others_.front(), error);
    return receive_text(others_.front());
  }
  std::string first = error.substr(0, kMostText);
  for (const Member& member : others_) {
    std::string received = receive_text(member);
    if (first.empty()) first = std::move(received);
  }
  for (const Member& member : others_) send_text(member, first);
  return first;
}

// With a byte in front, since a message of no bytes reads like an end.
void Handshake::send_text(const Member& member, const std::string& text) {
  const std::string message = "w" + text.substr(0, kMostText);
  if (::send(member.connection.get(), message.data(), message.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(message.size())) {
    went_away(member.pid);
  }
}

std::string Handshake::receive_text(const Member& member) const {
  if (!await(member.connection.get(), patience_)) is_silent(member.pid);
  std::string message(kMostText + 1, '\0');
  const ssize_t size = ::recv(member.connection.get(), message.data(), message.size(), 0);
  if (size <= 0) went_away(member.pid);
  return message.substr(1, static_cast<std::size_t>(size) - 1);
}

}  // namespace ddprun::shm
