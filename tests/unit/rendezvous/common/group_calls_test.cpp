// What a worker has reported, together with its record.
#include "rendezvous/common/worker_abi/group_calls.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

std::vector<GroupCalls> calls(std::uint64_t entered, bool is_over) {
  GroupCalls group{"ddprun", 1, 2, 0, entered};
  group.at = GroupCall{{}, entered, is_over, 3s};
  return {group, {"pair", 2, 2, 0, 5}};
}

TEST(GroupCallsTest, TheRecordSaysWhetherAWorkerIsInACollectiveAndHowManyItHasBegun) {
  WorkerProgress reported;
  reported.collectives = 2;
  reported.phase = WorkerPhase::kRunning;
  const auto inside = with_calls(reported, calls(40, false));
  EXPECT_EQ(inside->phase, WorkerPhase::kCollective) << "a call that a library made";
  EXPECT_EQ(inside->since_phase, 3s);
  EXPECT_EQ(inside->collectives, 45U);
  reported.phase = WorkerPhase::kCollective;
  EXPECT_EQ(with_calls(reported, calls(40, true))->phase, WorkerPhase::kRunning);
  reported.phase = WorkerPhase::kSaving;
  EXPECT_EQ(with_calls(reported, calls(40, false))->phase, WorkerPhase::kSaving)
      << "an asynchronous call may be open";
}

TEST(GroupCallsTest, AWorkerThatReportsNothingHasItsRecord) {
  const auto progress = with_calls(std::nullopt, calls(40, false));
  ASSERT_TRUE(progress);
  EXPECT_FALSE(progress->step);
  EXPECT_EQ(progress->phase, WorkerPhase::kCollective);
  EXPECT_EQ(with_calls(std::nullopt, {}), std::nullopt);
  EXPECT_EQ(with_calls(std::nullopt, {{"pair", 2, 2, 0, 0}}), std::nullopt);
}

}  // namespace
}  // namespace ddprun
