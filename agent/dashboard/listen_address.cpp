#include "agent/dashboard/listen_address.h"

#include <utility>
#include <vector>

#include "rendezvous/net/socket_address.h"

namespace ddprun::agent {

std::unique_ptr<rdzv::Attempt> find_listen_address(boost::asio::io_context& io,
                                                   const std::string& host,
                                                   std::function<void(Result<std::string>)> done) {
  if (rdzv::parse_numeric(host)) return done(host), nullptr;
  if (const auto known = rdzv::addresses_without_lookup(host)) return done(known->front()), nullptr;
  return rdzv::look_up_name(
      io, host, [host, done = std::move(done)](Result<std::vector<std::string>> addresses) {
        if (addresses) return done(addresses->front());
        done(fail(ErrorCode::kNotFound, "the host name " + host + " has no address (" +
                                            addresses.error().message +
                                            "); give an address of this machine"));
      });
}

}  // namespace ddprun::agent
