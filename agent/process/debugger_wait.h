// --attach-debugger: the text for the user about a worker that is stopped before its first
// instruction (ProcessSpec::waits_for_debugger). Any thread may call; the only I/O is to look for
// gdbserver on PATH.
//
// No debug server is started, because everybody who reaches its port controls the worker, and on a
// shared node that is every user. The printed command runs gdbserver over ssh instead.
#pragma once

#include <sys/types.h>

#include <string>

#include "rendezvous/common/environment.h"

namespace ddprun::agent {

// Whole lines.
std::string waits_for_debugger_text(int rank, pid_t pid, const std::string& host,
                                    const Environment& environment);

}  // namespace ddprun::agent
