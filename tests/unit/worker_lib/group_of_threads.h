// Ranks as threads of one process over a store in memory: for tests of what ranks do together. Each
// thread has a Context of its own; an exception on any of them fails the test with its rank.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "ddprun/context.h"

namespace ddprun::test {

// LibTorch 2.11 keeps one flight recorder for all groups of a process and writes its map of groups
// without a lock: two of them in two threads tear it. A training process has one group; here there
// are several, so the recorder is off. Read once, by the first group.
inline void switch_flight_recorder_off() {
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/1);
  ::setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "0", /*overwrite=*/1);
}

// DDPRUN_TEST_BACKEND=shm runs what is tested here over shared memory.
inline Backend backend_under_test() {
  const char* const name = std::getenv("DDPRUN_TEST_BACKEND");
  return name == nullptr ? Backend::kGloo : backend_from(name);
}

// DDPRUN_TEST_RANKS_PER_NODE: the ranks are as if on nodes of so many; 0: on one.
inline int ranks_per_node_under_test() {
  const char* const number = std::getenv("DDPRUN_TEST_RANKS_PER_NODE");
  return number == nullptr ? 0 : std::atoi(number);
}

// For bodies that make their Contexts themselves. `environment_of` gives what a rank has besides its
// place.
inline void run_rank_threads(
    int world_size, const std::function<void(const Environment&)>& body,
    const std::function<Environment(int rank)>& environment_of = [](int) { return Environment{}; },
    int ranks_per_node = ranks_per_node_under_test()) {
  switch_flight_recorder_off();
  ::signal(SIGPIPE, SIG_IGN);  // as run() does
  std::vector<std::string> thrown(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      Environment environment = environment_of(rank);
      environment.rank = rank;
      environment.world_size = world_size;
      environment.local_world_size =
          ranks_per_node == 0 ? world_size : std::min(world_size, ranks_per_node);
      environment.local_rank = rank % environment.local_world_size;
      try {
        body(environment);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(thrown[static_cast<std::size_t>(rank)], "") << "thrown by rank " << rank;
  }
}

inline void run_ranks(
    int world_size, const std::function<void(Context&)>& body,
    const std::function<Environment(int rank)>& environment_of = [](int) { return Environment{}; },
    ContextOptions options = {.backend = backend_under_test()},
    int ranks_per_node = ranks_per_node_under_test()) {
  options.timeout = options.join_timeout = std::chrono::seconds(20);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_rank_threads(
      world_size,
      [&](const Environment& environment) {
        Context context(environment, store, options);
        body(context);
      },
      environment_of, ranks_per_node);
}

}  // namespace ddprun::test
