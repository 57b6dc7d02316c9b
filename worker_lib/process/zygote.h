// The worker's side of standbys (rendezvous/common/worker_abi/zygote_protocol.h): a process that an
// agent has started as a zygote waits here, in its first Context, and forks standbys. run.h says what
// these share. Without LibTorch. Main thread only.
#pragma once

namespace ddprun::zygote {

// Call it in the first Context before any variable of a worker is read. In a zygote it returns only in
// a forked process that has become a worker: with that worker's variables, stdout and stderr, and as
// the agent's child. In every other process it returns at once. `is_allowed`: ContextOptions::
// can_be_standby.
void wait_for_rank(bool is_allowed);

// Whether this program, started as a zygote, would have waited in wait_for_rank().
bool can_be_zygote();

// Of a worker's variables, the first one that the program itself has asked for before
// wait_for_rank(); null: none. A zygote has no answer. In ddprun::standby: without it nothing is forked.
[[gnu::weak]] const char* variable_read_early();
inline bool is_linked() { return variable_read_early != nullptr; }

}  // namespace ddprun::zygote
