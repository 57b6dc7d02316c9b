// The agent as the launcher sees it: one call that runs a job on this node and returns the exit
// code. Until it returns it owns the process: signal handlers, children, stdout and stderr.
#pragma once

#include "agent/job.h"

namespace ddprun::agent {

// Runs the job to its end and reports errors on stderr. Returns an exit code of README's "Errors
// and exit codes". Call it from the main thread, before the process has another thread.
int run(const Job& job);

}  // namespace ddprun::agent
