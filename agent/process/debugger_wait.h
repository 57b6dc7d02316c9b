// --attach-debugger: what the user is told of a worker that waits, stopped before its first
// instruction (ProcessSpec::waits_for_debugger). Looks for gdbserver on PATH and at nothing else; any
// thread.
//
// No debug server is started: whoever reaches its port owns the worker, and on a shared node that
// is everybody. The command that is printed runs it over ssh instead.
#pragma once

#include <sys/types.h>

#include <string>

#include "rendezvous/common/environment.h"

namespace ddprun::agent {

// Lines with their ends.
std::string waits_for_debugger_text(int rank, pid_t pid, const std::string& host,
                                    const Environment& environment);

// Several nodes: only when they have met is it known which ranks there are.
std::string nobody_to_debug(int rank, int world_size);

}  // namespace ddprun::agent
