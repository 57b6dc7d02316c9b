#include "rendezvous/peer_addresses.h"

#include <algorithm>
#include <cstring>

#include "rendezvous/socket_address.h"

namespace ddprun::rdzv {
namespace {

std::array<std::uint8_t, sizeof(in6_addr)> mapped(const SocketAddress& address) {
  std::array<std::uint8_t, sizeof(in6_addr)> bytes{};
  if (address.storage.ss_family == AF_INET) {
    bytes[10] = bytes[11] = 0xff;
    std::memcpy(&bytes[12], &address.v4()->sin_addr, sizeof(in_addr));
  } else {
    std::memcpy(bytes.data(), &address.v6()->sin6_addr, sizeof(in6_addr));
  }
  return bytes;
}

}  // namespace

Result<PeerAddresses> PeerAddresses::of(const std::vector<std::string>& addresses) {
  PeerAddresses peers;
  for (const std::string& text : addresses) {
    const auto address = parse_numeric(text);
    if (!address) {
      return fail(ErrorCode::kInvalidArgument,
                  "'" + text + "' is no numeric address that clients could come from");
    }
    peers.sorted_.push_back(mapped(*address));
  }
  std::ranges::sort(peers.sorted_);
  return peers;
}

bool PeerAddresses::accept(int socket) const {
  if (sorted_.empty()) return true;
  SocketAddress peer;
  if (::getpeername(socket, peer.get(), &peer.size) != 0) return false;
  const bool is_ip = peer.storage.ss_family == AF_INET || peer.storage.ss_family == AF_INET6;
  return is_ip && std::ranges::binary_search(sorted_, mapped(peer));
}

}  // namespace ddprun::rdzv
