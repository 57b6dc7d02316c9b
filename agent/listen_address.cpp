#include "agent/listen_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

namespace ddprun::agent {
namespace {

bool is_numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return ::inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace

Result<std::string> listen_address(const std::string& host) {
  if (is_numeric(host)) return host;
  if (host == "localhost") return "127.0.0.1";  // whatever /etc/hosts or a name server make of it
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::array<char, NI_MAXHOST> text{};
  if (code != 0 || ::getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(),
                                 nullptr, 0, NI_NUMERICHOST) != 0) {
    return fail(ErrorCode::kNotFound, "the host name " + host + " has no address (" +
                                          ::gai_strerror(code) +
                                          "); give an address of this machine");
  }
  return std::string(text.data());
}

}  // namespace ddprun::agent
