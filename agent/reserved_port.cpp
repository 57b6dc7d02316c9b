#include "agent/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace ddprun::agent {
namespace {

union Address {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

}  // namespace

Result<ReservedPort> reserve_port(const std::string& address, std::uint16_t port) {
  Address at{};
  socklen_t size = sizeof at.v4;
  if (::inet_pton(AF_INET, address.c_str(), &at.v4.sin_addr) == 1) {
    at.v4.sin_family = AF_INET;
    at.v4.sin_port = htons(port);
  } else if (::inet_pton(AF_INET6, address.c_str(), &at.v6.sin6_addr) == 1) {
    at.v6.sin6_family = AF_INET6;
    at.v6.sin6_port = htons(port);
    size = sizeof at.v6;
  } else {
    return fail(ErrorCode::kInvalidArgument, address + " is no numeric address");
  }
  const std::string what = "cannot reserve " + address + ":" + std::to_string(port);
  ReservedPort reserved{rdzv::UniqueFd(::socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0)),
                        port};
  const int on = 1;
  if (!reserved.socket ||
      ::setsockopt(reserved.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(reserved.socket.get(), &at.any, size) != 0 ||
      ::getsockname(reserved.socket.get(), &at.any, &size) != 0) {
    return fail(error_from_errno(errno, what));
  }
  reserved.port = ntohs(at.any.sa_family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
  return reserved;
}

}  // namespace ddprun::agent
