// Process groups of c10d from a store, ranks and options, without a Context.
#include "worker_lib/c10d/process_group.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddprun/error.h"
#include "tests/unit/worker_lib/group_of_threads.h"

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
  for (const auto& [backend, ranks] :
       {std::pair(Backend::kGloo, 2), std::pair(Backend::kShm, 2), std::pair(Backend::kShm, 3)}) {
    SCOPED_TRACE(static_cast<int>(backend));
    on_ranks(ranks, {.backend = backend}, [ranks](const GroupMaker& maker, int rank) {
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
