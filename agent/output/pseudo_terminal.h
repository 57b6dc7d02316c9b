// A pseudo-terminal for a worker's stderr, so that the program sees a terminal if the agent has
// one. In raw mode: no byte is changed.
#pragma once

#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct PseudoTerminal {
  int agent_fd = -1;   // non-blocking
  int worker_fd = -1;  // does not become the worker's controlling terminal
};

// Both descriptors are close-on-exec. The window size is that of the terminal `like`.
Result<PseudoTerminal> open_pseudo_terminal(int like);

void copy_window_size(int from, int to);

}  // namespace ddprun::agent
