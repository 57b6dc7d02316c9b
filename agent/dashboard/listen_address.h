// The numeric address of a name of this machine, so that the store, which never resolves a name,
// can listen there. Looked up beside the event loop, so that a signal need not wait for a name
// server; used once, before there are workers. Event loop thread only.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/common/result.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::agent {

// `done` is called from here for addresses and for "localhost", else from the event loop, unless
// the result is destroyed before. `host` must not be empty.
std::unique_ptr<rdzv::Attempt> find_listen_address(boost::asio::io_context& io,
                                                   const std::string& host,
                                                   std::function<void(Result<std::string>)> done);

}  // namespace ddprun::agent
