// How a rank waits for what other ranks write into shared memory: it looks for a while, if it may
// spin, and then sleeps on its bell (a futex); who writes rings the bells of those who sleep.
//
// Nobody sleeps through a change: a sleeper says so (sleepers) before it looks a last time, and a
// writer looks for sleepers after it has written, all in one order (seq_cst), so at least one sees
// the other; and a bell that rang between the look and the sleep has another number, with which the
// kernel refuses to sleep. tests/model/shm_rounds.pml checks it. Any thread.
#pragma once

#include <chrono>
#include <functional>

#include "worker_lib/shm/shm_segment.h"

namespace ddprun::shm {

using Clock = std::chrono::steady_clock;

// How long to look before sleeping, and until when to wait at all.
struct Patience {
  std::chrono::nanoseconds spin{0};
  Clock::time_point until = Clock::time_point::max();
};

// After what `bell`'s owner waits for was written, with seq_cst. A load, where nobody sleeps.
void ring(Bell& bell);
// The same whether or not anybody sleeps.
void wake(Bell& bell);

// True as soon as is_so() is; false at the end of patience. is_so() may throw.
bool wait_for(Bell& bell, const Patience& patience, const std::function<bool()>& is_so);

// Looks only; what wait_for() does first.
bool spin_for(std::chrono::nanoseconds time, const std::function<bool()>& is_so);

}  // namespace ddprun::shm
