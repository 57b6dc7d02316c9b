// An IPv4 or IPv6 address and port for socket calls. A value; any thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace ddprun::rdzv {

struct SocketAddress {
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
    sockaddr_storage storage{};
  };
  socklen_t size = sizeof storage;  // the capacity, for calls that fill it in

  int family() const { return any.sa_family; }
  bool is_ip() const { return family() == AF_INET || family() == AF_INET6; }
  // Needs is_ip(), as set_port().
  std::uint16_t port() const { return ntohs(family() == AF_INET ? v4.sin_port : v6.sin6_port); }
  void set_port(std::uint16_t port) {
    (family() == AF_INET ? v4.sin_port : v6.sin6_port) = htons(port);
  }
  bool is_loopback() const {
    if (family() == AF_INET) return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
    const in6_addr& address = v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
};

inline SocketAddress socket_address(const sockaddr* from) {
  SocketAddress address;
  address.any.sa_family = from->sa_family;
  if (address.is_ip()) {
    address.size = address.family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.any, from, address.size);
  }
  return address;
}

// Without a port; nullopt for a name and for an address with a zone.
inline std::optional<SocketAddress> parse_numeric(const std::string& text) {
  SocketAddress address;
  if (::inet_pton(AF_INET, text.c_str(), &address.v4.sin_addr) == 1) {
    address.any.sa_family = AF_INET;
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (::inet_pton(AF_INET6, text.c_str(), &address.v6.sin6_addr) == 1) {
    address.any.sa_family = AF_INET6;
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
  if (address.any.sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &address.v4.sin_addr, text, sizeof text);
  } else if (IN6_IS_ADDR_V4MAPPED(&address.v6.sin6_addr)) {
    ::inet_ntop(AF_INET, &address.v6.sin6_addr.s6_addr[12], text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, &address.v6.sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace ddprun::rdzv
