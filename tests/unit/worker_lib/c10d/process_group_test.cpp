// Process groups of c10d from a store, ranks and options, without a Context.
#include "worker_lib/c10d/process_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddprun/error.h"
#include "tests/unit/worker_lib/group_of_threads.h"
#include "worker_lib/c10d/gloo_interrupt.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

// Each rank a thread of this process, two on a node.
void on_ranks(int ranks, const ProcessGroupOptions& options,
              const std::function<void(const GroupMaker& maker, int rank)>& body) {
  test::switch_flight_recorder_off();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ProcessGroupOptions own = options;
      own.node = rank / 2 * 2;
      own.join_timeout = own.timeout = 20s;
      body(GroupMaker(store, own), rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int sum_over(c10d::ProcessGroup& group, int value) {
  std::vector<at::Tensor> tensors{torch::tensor({value})};
  group.allreduce(tensors)->wait();
  return tensors[0].item<int>();
}

TEST(ProcessGroup, IsMadeAgainInTheSameProcess) {
  for (const auto& each :
       {std::pair(Backend::kGloo, 2), std::pair(Backend::kShm, 2), std::pair(Backend::kShm, 3)}) {
    const int ranks = each.second;
    SCOPED_TRACE(static_cast<int>(each.first));
    on_ranks(ranks, {.backend = each.first}, [ranks](const GroupMaker& maker, int rank) {
      std::vector<int> all(static_cast<std::size_t>(ranks));
      std::iota(all.begin(), all.end(), 0);
      for (const char* const name : {"first", "second"}) {
        const auto group = maker.make(name, rank, all);
        EXPECT_EQ(group->getRank(), rank);
        EXPECT_EQ(sum_over(*group, rank + 1), ranks * (ranks + 1) / 2) << name;
        if (std::string(name) == "first") close_connections(*group);
      }
    });
  }
}

// Also while its connections are made: one that is failed and connected afterwards would end the process.
TEST(ProcessGroup, OverGlooIsInterruptedAtAnyMomentOfItsMaking) {
  if (!detail::can_interrupt_gloo()) GTEST_SKIP() << "Gloo's symbols are not those of this test";
  constexpr int kMoments = 150;
  int made = 0;
  for (int moment = 0; moment < kMoments; ++moment) {
    std::atomic<int> ended = 0;
    std::thread interrupts([&ended, moment] {
      std::this_thread::sleep_for(moment * 20us);
      while (ended < 2) {
        detail::interrupt_gloo("interrupted");
        std::this_thread::sleep_for(100us);
      }
    });
    std::atomic<int> sums = 0;
    on_ranks(2, {.backend = Backend::kGloo}, [&](const GroupMaker& maker, int rank) {
      try {
        sums += sum_over(*maker.make("interrupted", rank, {0, 1}), rank + 1);
      } catch (const std::exception&) {
        // by which side, and where in the making, differs
      }
      ++ended;
    });
    interrupts.join();
    made += sums == 6;
    EXPECT_TRUE(sums == 0 || sums == 3 || sums == 6) << sums;
  }
  std::cout << made << " of " << kMoments << " were made before\n";
}

TEST(ProcessGroup, ARankThatDoesNotComeIsNamed) {
  ProcessGroupOptions options{.backend = Backend::kGloo, .join_timeout = 100ms};
  options.place = "the meeting place";
  const GroupMaker maker(c10::make_intrusive<c10d::HashStore>(), options);
  try {
    maker.make("group", 0, {0, 4});
    ADD_FAILURE() << "rank 4 was not needed";
  } catch (const Failure& failure) {
    EXPECT_EQ(
        std::string(failure.what()).find("rank 4 did not come to the meeting place within 0.1 s"),
        0);
  }
}

}  // namespace
}  // namespace ddprun
