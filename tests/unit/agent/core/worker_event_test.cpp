// What the core decides upon, of all that happens to workers.
#include "agent/core/worker_event.h"

#include <gtest/gtest.h>

#include <optional>
#include <variant>

namespace ddprun::agent {
namespace {

constexpr Round kRound{3};

template <typename Event>
std::optional<Event> decided(worker_event::What what) {
  const auto event = node_event({kRound, std::move(what)});
  if (!event || !std::holds_alternative<Event>(*event)) return std::nullopt;
  return std::get<Event>(*event);
}

TEST(WorkerEvent, AFailureIsTheCoresWithWhatIsKnownOfIt) {
  rdzv::WorkerFailure failure;
  failure.local_rank = 1;
  failure.status = ExitStatus::exited(7);
  const auto ended = decided<WorkerEnded>(
      worker_event::Ended{failure, Replaceable{.committed = 5, .generation = 2}});
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->round, kRound);
  EXPECT_EQ(ended->local_rank, 1);
  EXPECT_EQ(ended->failure, failure);
  ASSERT_TRUE(ended->replaceable);
  EXPECT_EQ(ended->replaceable->committed, 5);
  EXPECT_EQ(ended->replaceable->generation, 2U);
}

TEST(WorkerEvent, ASuccessAndAWorkerThatWasNotStartedHaveNoFailure) {
  rdzv::WorkerFailure success;
  success.local_rank = 2;
  const auto ended = decided<WorkerEnded>(worker_event::Ended{success});
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->local_rank, 2);
  EXPECT_EQ(ended->failure, std::nullopt);
  const auto not_started = decided<WorkerEnded>(worker_event::NotStarted{1});
  ASSERT_TRUE(not_started);
  EXPECT_EQ(not_started->local_rank, 1);
  EXPECT_EQ(not_started->failure, std::nullopt);
}

TEST(WorkerEvent, AWorkerWhosePlaceNoStandbyTakesIsNotReplaceableAgain) {
  rdzv::WorkerFailure failure;
  failure.status = ExitStatus::exited(7);
  const auto ended = decided<WorkerEnded>(worker_event::NotReplaced{1, failure});
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->local_rank, 1);
  EXPECT_EQ(ended->failure, failure);
  EXPECT_FALSE(ended->replaceable);
}

TEST(WorkerEvent, WhatEndsARoundOrAGenerationIsTheCoresWithItsRound) {
  EXPECT_EQ(decided<WorkerStarted>(worker_event::Executed{1})->local_rank, 1);
  EXPECT_EQ(decided<RoundClosed>(worker_event::Closed{})->round, kRound);
  EXPECT_EQ(decided<StacksTaken>(worker_event::StacksTaken{})->round, kRound);
  EXPECT_EQ(decided<WorkersCanRecover>(worker_event::CanRecover{})->round, kRound);
  EXPECT_EQ(decided<WorkerCannotRegroup>(worker_event::CannotRegroup{2})->local_rank, 2);
  const auto regrouped = decided<WorkerRegrouped>(worker_event::Regrouped{2, 4});
  ASSERT_TRUE(regrouped);
  EXPECT_EQ(regrouped->local_rank, 2);
  EXPECT_EQ(regrouped->generation, 4U);
}

TEST(WorkerEvent, WhatOnlyObserversShowIsNotTheCores) {
  for (const worker_event::What& what :
       {worker_event::What(worker_event::Started{}), worker_event::What(worker_event::Ending{}),
        worker_event::What(worker_event::Preempted{}), worker_event::What(worker_event::Killed{}),
        worker_event::What(worker_event::Stepped{}),
        worker_event::What(worker_event::ReplicasDiffer{}),
        worker_event::What(worker_event::NotFinite{}), worker_event::What(worker_event::Replaced{}),
        worker_event::What(worker_event::Committed{}),
        worker_event::What(worker_event::KeeperReplaced{})}) {
    EXPECT_FALSE(node_event({kRound, what})) << what.index();
  }
}

}  // namespace
}  // namespace ddprun::agent
