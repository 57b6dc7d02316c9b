// Where something listens: a host (a name or a numeric address, never brackets) and a port, as
// people write it: "host:port", "10.0.0.5:29400", "[fe80::1]:29400". Values; any thread. `host` may
// be a name: nothing here looks it up.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  // "host:port", an IPv6 host in brackets.
  std::string to_string() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// With commas between them, as parse_endpoint() takes each.
std::string to_string(const std::vector<Endpoint>& endpoints);

// Ports first to last, both included.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;
  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// "HOST:PORT". The port is required; 0 is allowed and means "any" to a listener.
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace ddprun::rdzv
