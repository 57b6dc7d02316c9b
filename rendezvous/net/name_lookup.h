// Host names to numeric addresses.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"
#include "rendezvous/net/transport.h"

namespace ddprun::rdzv {

// Looks up a host name on a thread of its own: a name server that is slow or does not answer delays
// neither the event loop nor the end of the process. (Asio's resolver joins its thread at the end,
// and getaddrinfo cannot be interrupted.) `done` is called by the io_context, with numeric
// addresses, the preferred one first, never an empty list.
std::unique_ptr<Attempt> look_up_name(boost::asio::io_context& io, const std::string& host,
                                      Transport::LookedUp done);

// The same, blocking; the error is only the resolver's message.
Result<std::vector<std::string>> addresses_of(const std::string& host);

// The addresses of a host that needs no name server: a numeric address, or "localhost", for which
// no server is asked.
std::optional<std::vector<std::string>> addresses_without_lookup(const std::string& host);

}  // namespace ddprun::rdzv
