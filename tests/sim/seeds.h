// Runs simulations of many seeds with one thread per processor; each simulation uses one thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/sim/simulation.h"

namespace ddprun::sim {

using Simulate = Result (*)(std::uint64_t seed, bool with_trace);

struct ManyResults {
  std::uint64_t violating_seed = 0;  // the lowest; 0: every invariant held
  std::string violation;
  std::uint64_t rounds = 0;
  std::uint64_t events = 0;
};

// Runs the seeds from `first` on; stops at the first violation.
inline ManyResults simulate_seeds(std::uint64_t first, std::uint64_t count, Simulate simulate_one) {
  ManyResults all;
  std::mutex mutex;
  std::atomic<std::uint64_t> next = first;
  std::atomic<std::uint64_t> end = first + count;
  const auto work = [&] {
    for (std::uint64_t seed = next++; seed < end; seed = next++) {
      const Result result = simulate_one(seed, /*with_trace=*/false);
      const std::scoped_lock lock(mutex);
      all.rounds += static_cast<std::uint64_t>(result.rounds);
      all.events += result.events;
      const bool is_lowest = all.violating_seed == 0 || seed < all.violating_seed;
      if (result.violation.empty() || !is_lowest) continue;
      all.violating_seed = seed;
      all.violation = result.violation;
      end = seed;
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  work();
  threads.clear();
  return all;
}

}  // namespace ddprun::sim
