// Simulates one job from its first hello to its last exit in virtual time: the production
// RoundServer, and for each agent the production RoundClient and NodeCore, over a virtual network;
// workers are simulated. The invariants (invariants.h) are checked after every step of the leader.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ddprun::sim {

struct Result {
  std::string violation;  // empty: every invariant held
  std::string trace;      // if it was requested
  int rounds = 0;
  std::uint64_t events = 0;
};

Result simulate(std::uint64_t seed, bool with_trace = false);  // of schedule_of(seed)

// The same under etcd: for each agent the shipped EtcdLeader, with its client of etcd, RoundServer
// and RoundClient, and the real NodeCore, over a virtual network and a virtual etcd. Agents are
// killed, paused, stopped, and partitioned from etcd and from each other; connections break, answers
// of etcd are lost, requests to it are performed late, and etcd is unavailable at times.
//
// clang-format off
//   one round    all agents that start workers of a round have equal RoundStarts, each with a rank of its
//                own; each agent's rounds go up
//   in etcd      when workers start, etcd has that round or a later one; when an agent is told of the
//                end, etcd has the outcome
//   one leader   only the leader in etcd writes the record; the leases of a winning claim are not revoked
//   budget       the spent restarts never decrease from round to round and never exceed the limit; no
//                record undoes a round, a restart or an outcome
//   success      only when every worker of the last round has ended with 0
//   progress     long after the last fault every agent has ended, with etcd's outcome or a reason of its
//                own, and no worker is left
// clang-format on
Result simulate_etcd(std::uint64_t seed, bool with_trace = false);

// What follows verdicts that ranks hang: each is reported once, and then its ranks are killed, or a sentence says why not.
Result simulate_hangs(std::uint64_t seed, bool with_trace = false);

using Simulate = Result (*)(std::uint64_t seed, bool with_trace);

struct ManyResults {
  std::uint64_t violating_seed = 0;  // the lowest; 0: every invariant held
  std::string violation;
  std::uint64_t rounds = 0;
  std::uint64_t events = 0;
};

// Runs the seeds from `first` on, on all processors; stops at the first violation.
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
