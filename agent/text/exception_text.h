// Turns an exception that nothing below has caught into an error: Asio's constructors throw if
// there are no more descriptors, and anything may throw if there is no more memory. Caught only at
// the edges (agent::run, main), which end with kExitCannotRun. Pure; any thread.
#pragma once

#include <exception>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

Error error_from_exception(const std::exception& exception);

}  // namespace ddprun::agent
