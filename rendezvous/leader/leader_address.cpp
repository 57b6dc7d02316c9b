#include "rendezvous/leader/leader_address.h"

#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "rendezvous/net/name_lookup.h"
#include "rendezvous/net/socket_address.h"

namespace ddprun::rdzv {
namespace {

std::vector<std::string> interface_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const SocketAddress address = socket_address(each->ifa_addr);
    if (!address.is_ip()) continue;
    addresses.push_back(numeric_host(address));
  }
  ::freeifaddrs(list);
  return addresses;
}

}  // namespace

std::optional<std::string> local_address_among(const std::vector<std::string>& addresses) {
  const auto ours = interface_addresses();
  for (const std::string& address : addresses) {
    if (is_loopback(address) || std::ranges::find(ours, address) != ours.end()) return address;
  }
  return std::nullopt;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

Result<Listener> open_leader_port(const Endpoint& endpoint,
                                  const std::vector<std::string>& addresses,
                                  std::optional<PortRange> instead_of_its_port) {
  ListenOptions options;
  options.port = endpoint.port;
  options.port_range = instead_of_its_port;
  const auto local = local_address_among(addresses);
  const bool is_name = !addresses_without_lookup(endpoint.host);
  // Many machines resolve their own name to 127.0.1.1, while others reach them by that name.
  const bool is_known_from_outside = !local || (is_name && is_loopback(*local));
  options.address = is_known_from_outside ? "::" : *local;
  return open_listener(options);
}

std::string describe(const Endpoint& endpoint, const WaitForNodes& wait,
                     const std::string& option) {
  const std::string text = "leads at " + endpoint.to_string() + "; " + describe(wait);
  if (endpoint.host != "localhost" && !is_loopback(endpoint.host)) return text;
  return text + "; nodes on other hosts cannot reach " + endpoint.host + ": give " + option +
         " this host's name";
}

}  // namespace ddprun::rdzv
