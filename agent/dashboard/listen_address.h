// The numeric address of a name of this machine, so that the store, which never resolves a name,
// can listen there. Looked up beside the event loop, so that a signal need not wait for a name
// server; used once, before there are workers. Event loop thread only.
#pragma once

#include <functional>
#include <string>

#include "rendezvous/common/result.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::agent {

// `done` is called from here for addresses and for "localhost", else from the event loop, unless
// `lookup` is cancelled or destroyed before. `host` must not be empty.
void find_listen_address(rdzv::NameLookup& lookup, const std::string& host,
                         std::function<void(Result<std::string>)> done);

}  // namespace ddprun::agent
