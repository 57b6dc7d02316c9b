// The numeric address that a name of this machine stands for, so that the store, which never
// resolves a name, can listen there. Blocks on the resolver for names other than "localhost":
// called once, before a worker exists.
#pragma once

#include <string>

#include "rendezvous/base/result.h"

namespace ddprun::agent {

Result<std::string> listen_address(const std::string& host);

}  // namespace ddprun::agent
