// A pseudo-terminal for a worker's stderr, so that the program sees a terminal where there is one.
// Raw: no byte is changed on the way.
#pragma once

#include "rendezvous/common/result.h"

namespace ddprun::agent {

struct PseudoTerminal {
  int agent_fd = -1;   // non-blocking
  int worker_fd = -1;  // inherited, it does not become the worker's controlling terminal
};

// Both descriptors are close-on-exec. The window's size is taken from `like`.
Result<PseudoTerminal> open_pseudo_terminal(int like);

void copy_window_size(int from, int to);

}  // namespace ddprun::agent
