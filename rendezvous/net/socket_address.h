// An IPv4 or IPv6 address and port for socket calls. A value; any thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun::rdzv {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;  // the capacity, for calls that fill it in

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  sockaddr_in* v4() { return reinterpret_cast<sockaddr_in*>(&storage); }
  sockaddr_in6* v6() { return reinterpret_cast<sockaddr_in6*>(&storage); }
  const sockaddr_in* v4() const { return reinterpret_cast<const sockaddr_in*>(&storage); }
  const sockaddr_in6* v6() const { return reinterpret_cast<const sockaddr_in6*>(&storage); }

  bool is_ip() const { return storage.ss_family == AF_INET || storage.ss_family == AF_INET6; }
  // port() and set_port() need is_ip().
  std::uint16_t port() const {
    return ntohs(storage.ss_family == AF_INET ? v4()->sin_port : v6()->sin6_port);
  }
  bool is_loopback() const {
    if (storage.ss_family == AF_INET) return (ntohl(v4()->sin_addr.s_addr) >> 24) == 127;
    const in6_addr& address = v6()->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
  void set_port(std::uint16_t port) {
    if (storage.ss_family == AF_INET) {
      v4()->sin_port = htons(port);
    } else {
      v6()->sin6_port = htons(port);
    }
  }
};

// Without a port; nullopt for a name and for an address with a zone.
inline std::optional<SocketAddress> parse_numeric(const std::string& text) {
  SocketAddress address;
  if (::inet_pton(AF_INET, text.c_str(), &address.v4()->sin_addr) == 1) {
    address.storage.ss_family = AF_INET;
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &address.v6()->sin6_addr) == 1) {
    address.storage.ss_family = AF_INET6;
    address.size = sizeof(sockaddr_in6);
    return address;
  }
  return std::nullopt;
}

inline bool is_loopback(const std::string& numeric) {
  const auto address = parse_numeric(numeric);
  return address && address->is_loopback();
}

// Without the port; an IPv4-mapped IPv6 address is written as IPv4.
inline std::string numeric_host(const SocketAddress& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &address.v4()->sin_addr, text, sizeof text);
  } else if (IN6_IS_ADDR_V4MAPPED(&address.v6()->sin6_addr)) {
    ::inet_ntop(AF_INET, &address.v6()->sin6_addr.s6_addr[12], text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, &address.v6()->sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace ddprun::rdzv
