#include "agent/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <array>
#include <memory>

#include "rendezvous/socket_address.h"

namespace ddprun::agent {
Result<std::string> listen_address(const std::string& host) {
  if (rdzv::parse_numeric(host)) return host;
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
