#include "rendezvous/peer_addresses.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

namespace ddprun::rdzv {
namespace {

std::array<std::uint8_t, 16> mapped(const in_addr& v4) {
  std::array<std::uint8_t, 16> address{};
  address[10] = address[11] = 0xff;
  std::memcpy(&address[12], &v4, sizeof v4);
  return address;
}

std::array<std::uint8_t, 16> bytes_of(const in6_addr& v6) {
  std::array<std::uint8_t, 16> address{};
  std::memcpy(address.data(), &v6, sizeof v6);
  return address;
}

}  // namespace

Result<PeerAddresses> PeerAddresses::of(const std::vector<std::string>& addresses) {
  PeerAddresses peers;
  for (const std::string& text : addresses) {
    in_addr v4{};
    in6_addr v6{};
    if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) {
      peers.sorted_.push_back(mapped(v4));
    } else if (::inet_pton(AF_INET6, text.c_str(), &v6) == 1) {
      peers.sorted_.push_back(bytes_of(v6));
    } else {
      return fail(Error{ErrorCode::kInvalidArgument,
                        "'" + text + "' is no numeric address that clients could come from",
                        {}});
    }
  }
  std::ranges::sort(peers.sorted_);
  return peers;
}

bool PeerAddresses::accept(int socket) const {
  if (sorted_.empty()) return true;
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  Address peer{};
  if (address.ss_family == AF_INET) {
    peer = mapped(reinterpret_cast<const sockaddr_in&>(address).sin_addr);
  } else if (address.ss_family == AF_INET6) {
    peer = bytes_of(reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  } else {
    return false;
  }
  return std::ranges::binary_search(sorted_, peer);
}

}  // namespace ddprun::rdzv
