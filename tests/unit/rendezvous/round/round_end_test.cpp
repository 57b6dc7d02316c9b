#include "rendezvous/round/round_end.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace ddprun::rdzv {
namespace {

using End = StoppingRound::End;

constexpr NodeId kFailed{1};
constexpr NodeId kOther{2};

StoppingRound with_failure(std::optional<NodeId> gone = {}) {
  StoppingRound stopping;
  stopping.cause = WorkerFailure{};
  stopping.cause_node = kFailed;
  if (gone) stopping.node_gone(*gone, /*is_loss=*/true);
  return stopping;
}

TEST(StoppingRound, EndsAsItsTableSays) {
  const StoppingRound none;
  const StoppingRound explained = with_failure(kOther);
  const StoppingRound own = with_failure();
  const StoppingRound own_of_a_lost_node = with_failure(kFailed);
  const struct Row {
    bool is_stop;
    bool allows_retry;
    End without_fault;
    End own_fault;
  } table[] = {{false, true, End::kNextRound, End::kNextRound},
               {false, false, End::kNextRound, End::kFailed},
               {true, true, End::kStopped, End::kStopped},
               {true, false, End::kStopped, End::kFailed}};
  for (const Row& row : table) {
    const auto end = [&row](StoppingRound stopping) {
      if (row.is_stop) stopping.stop = StoppingRound::Stop{};
      return stopping.end(row.allows_retry);
    };
    EXPECT_EQ(end(none), row.without_fault);
    EXPECT_EQ(end(explained), row.without_fault);
    EXPECT_EQ(end(own), row.own_fault);
    EXPECT_EQ(end(own_of_a_lost_node), row.own_fault);
  }
}

TEST(StoppingRound, OfWhichEveryWorkerHadEndedWithZeroIsASuccess) {
  StoppingRound stopping;
  stopping.world_size = 2;
  stopping.done = {0};
  EXPECT_EQ(stopping.end(false), End::kNextRound);
  stopping.done = {0, 1};
  EXPECT_EQ(stopping.end(false), End::kSucceeded);
  stopping.stop = StoppingRound::Stop{};
  EXPECT_EQ(stopping.end(false), End::kSucceeded) << "the stop came too late";
  stopping.stop->why.is_preemption = true;
  EXPECT_EQ(stopping.end(false), End::kStopped) << "they may have left because of it";
  stopping = with_failure();
  stopping.world_size = 2;
  stopping.done = {0, 1};
  EXPECT_EQ(stopping.end(false), End::kFailed);
}

TEST(StoppingRound, WhatIsPaidIsRetriedAndWhatIsNeverRetriedFails) {
  StoppingRound paid = with_failure();
  paid.retry = StoppingRound::Paid{};
  EXPECT_EQ(paid.end(/*allows_retry=*/false), End::kNextRound);
  StoppingRound never = with_failure();
  never.retry = StoppingRound::Never{"it is poison"};
  EXPECT_EQ(never.end(/*allows_retry=*/true), End::kFailed);
  never.node_gone(kOther, /*is_loss=*/false);
  EXPECT_EQ(never.end(/*allows_retry=*/true), End::kNextRound);
}

}  // namespace
}  // namespace ddprun::rdzv
