#include "agent/listen_address.h"

#include "rendezvous/name_lookup.h"
#include "rendezvous/socket_address.h"

namespace ddprun::agent {

Result<std::string> listen_address(const std::string& host) {
  if (rdzv::parse_numeric(host)) return host;
  const auto addresses = rdzv::addresses_of(host);
  if (addresses) return addresses->front();
  return fail(ErrorCode::kNotFound, "the host name " + host + " has no address (" +
                                        addresses.error().message +
                                        "); give an address of this machine");
}

}  // namespace ddprun::agent
