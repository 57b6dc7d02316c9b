#include "rendezvous/net/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "rendezvous/common/limits.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// These options are optional: the server also works on a kernel that refuses one.
void tune(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(limits::kKeepAliveIdle.count()));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(limits::kKeepAliveInterval.count()));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, limits::kKeepAliveProbes);
  // If BBR is the system's default, it paces loopback traffic too: 8 MiB replies then take 1.4
  // times as long. Every kernel has Reno, which is good enough for a store's replies.
  static constexpr char kReno[] = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno - 1);
}

Result<Endpoint> bound_endpoint(int fd) {
  SocketAddress address;
  if (::getsockname(fd, &address.any, &address.size) != 0)
    return fail(error_from_errno(errno, "getsockname"));
  if (address.is_ip()) return Endpoint{numeric_host(address), address.port()};
  return fail(ErrorCode::kInvalidArgument,
              "file descriptor " + std::to_string(fd) + " is not a TCP socket");
}

Result<Listener> bound_listener(UniqueFd socket) {
  return bound_endpoint(socket.get()).map([&](Endpoint bound) {
    return Listener{std::move(socket), std::move(bound)};
  });
}

Result<Listener> listen_on(UniqueFd socket) {
  tune(socket.get());
  // INT_MAX: the kernel lowers it to net.core.somaxconn, the maximum.
  if (::listen(socket.get(), INT_MAX) != 0) return fail(error_from_errno(errno, "listen"));
  return bound_listener(std::move(socket));
}

enum class Purpose { kListen, kReserve };

Result<Listener> try_port(SocketAddress address, std::uint16_t port, Purpose purpose) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return fail(error_from_errno(errno, "socket"));
  // Two sockets that both set it can bind the same port, and then listen() fails; a socket that
  // sets it after bind still keeps out sockets without it, such as another reservation.
  if (purpose == Purpose::kListen) set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  address.set_port(port);
  if (::bind(socket.get(), &address.any, address.size) != 0)
    return fail(error_from_errno(errno, "bind"));
  if (purpose == Purpose::kListen) return listen_on(std::move(socket));
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  return bound_listener(std::move(socket));
}

Result<Listener> take_over(int fd) {
  UniqueFd socket(fd);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0)
    return fail(
        error_from_errno(errno, "the listening socket to take over (" + std::to_string(fd) + ")"));
  ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return listen_on(std::move(socket));
}

Result<Listener> first_free(const SocketAddress& address, PortRange range, Purpose purpose) {
  for (unsigned port = range.first; port <= range.last; ++port) {
    auto listener = try_port(address, static_cast<std::uint16_t>(port), purpose);
    if (listener || listener.error().code != ErrorCode::kAddressInUse) return listener;
  }
  return fail(ErrorCode::kAddressInUse, "every port from " + std::to_string(range.first) + " to " +
                                            std::to_string(range.last) +
                                            " is taken; give a larger range");
}

bool has_no_ipv6(const Error& error, const std::string& address) {
  return address == "::" && error.code != ErrorCode::kAddressInUse &&
         error.code != ErrorCode::kPermissionDenied && error.code != ErrorCode::kResourceExhausted;
}

Result<Listener> open_socket(const ListenOptions& options, Purpose purpose) {
  const auto address = parse_numeric(options.address);
  if (!address) {
    return fail(ErrorCode::kInvalidArgument,
                "'" + options.address +
                    "' is no numeric address to listen on; give one as 127.0.0.1, :: or fe80::1");
  }
  const PortRange range = options.port_range.value_or(PortRange{options.port, options.port});
  if (range.first > range.last) {
    return fail(ErrorCode::kInvalidArgument, "the port range " + std::to_string(range.first) + ":" +
                                                 std::to_string(range.last) + " is empty");
  }
  auto listener = options.port_range ? first_free(*address, range, purpose)
                                     : try_port(*address, options.port, purpose);
  if (!listener && has_no_ipv6(listener.error(), options.address)) {
    ListenOptions ipv4 = options;
    ipv4.address = "0.0.0.0";
    return open_socket(ipv4, purpose);
  }
  if (!listener) {
    const Endpoint wanted{options.address, range.first};
    listener.error().message =
        "cannot listen on " + wanted.to_string() + ": " + listener.error().message;
    if (listener.error().code == ErrorCode::kAddressInUse && !options.port_range) {
      listener.error().message += "; choose another port, or 0 for any";
    }
  }
  return listener;
}

}  // namespace

Result<Listener> open_listener(const ListenOptions& options) {
  if (options.listen_fd >= 0) return take_over(options.listen_fd);
  return open_socket(options, Purpose::kListen);
}

Result<Listener> reserve_port(const ListenOptions& options) {
  return open_socket(options, Purpose::kReserve);
}

void prepare_connection(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  tune(fd);
}

}  // namespace ddprun::rdzv
