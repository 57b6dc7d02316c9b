// An exception that nobody below had a use for, as an error: Asio's constructors throw where there
// are no more descriptors, everything does where there is no more memory. Caught at the edges alone
// (agent::run, main), which end with kExitCannotRun. Pure; any thread.
#pragma once

#include <exception>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

Error error_from_exception(const std::exception& exception);

}  // namespace ddprun::agent
