// How a rank waits for what other ranks write into shared memory: it spins for a while, if it may,
// and then sleeps on its futex; a writer wakes those who sleep.
//
// No wake-up is lost: a sleeper counts itself (sleepers) before it looks a last time, and a writer
// looks for sleepers after it has written, all in one order (seq_cst), so at least one sees the
// other; and the futex' number changes with every wake-up, so that the kernel refuses to sleep after
// one that came between the look and the sleep. tests/model/shm_slot_exchange.pml checks it. Any thread.
#pragma once

#include <chrono>
#include <functional>

#include "worker_lib/shm/shm_segment.h"

namespace ddprun::shm {

using Clock = std::chrono::steady_clock;

// After what the futex' owner waits for was written, with seq_cst. A load, where nobody sleeps.
void notify(Futex& futex);
// The same whether or not anybody sleeps.
void wake(Futex& futex);

// Sleeps. True as soon as condition() is; false at `until`. condition() may throw.
bool wait_for(Futex& futex, Clock::time_point until, const std::function<bool()>& condition);

// Spins only, for `time` at most: what may come before wait_for().
bool spin_for(std::chrono::nanoseconds time, const std::function<bool()>& condition);

}  // namespace ddprun::shm
