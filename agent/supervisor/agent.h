// The agent as the launcher sees it: one call that runs a job on this node and comes back with the
// exit code. It owns the process while it runs: signal handlers, children, stdout and stderr.
#pragma once

#include "agent/job.h"

namespace ddprun::agent {

// Runs the job to its end. Whatever goes wrong was reported on stderr when it returns; the value is
// the exit code of README's "Errors and exit codes". Call it from the main thread, before another
// is made.
int run(const Job& job);

}  // namespace ddprun::agent
