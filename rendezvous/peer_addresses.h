// The addresses that a server takes clients from, where not everybody who can reach its port is
// meant to. A value; any thread. The mistake to avoid: taking an address for a proof of who it is.
// It keeps out what comes by mistake (another job, a scanner), not who can forge it.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/base/result.h"

namespace ddprun::rdzv {

class PeerAddresses {
 public:
  PeerAddresses() = default;  // everybody
  // Numeric IPv4 and IPv6 addresses, each in any spelling; none: everybody.
  static Result<PeerAddresses> of(const std::vector<std::string>& addresses);

  // Whether the other side of this connected socket is one of them.
  bool accept(int socket) const;

 private:
  using Address = std::array<std::uint8_t, sizeof(in6_addr)>;  // IPv4 as ::ffff:a.b.c.d

  std::vector<Address> sorted_;
};

}  // namespace ddprun::rdzv
