// The agent as the launcher sees it: one call that runs a job on this node and returns the exit
// code. Until it returns it owns the process: signal handlers, children, stdout and stderr.
#pragma once

#include <exception>

#include "agent/job.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

// Runs the job to its end and reports errors on stderr. Returns an exit code of README's "Errors
// and exit codes". Call it from the main thread, before the process has another thread.
int run(const Job& job);

// Turns an exception that nothing below has caught into an error: Asio's constructors throw if there
// are no more descriptors, and anything may throw if there is no more memory. Caught only at the
// edges (run(), main), which end with kExitCannotRun. Pure; any thread.
Error error_from_exception(const std::exception& exception);

}  // namespace ddprun::agent
