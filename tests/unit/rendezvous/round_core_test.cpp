#include "rendezvous/round_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "rendezvous/base/exit_codes.h"

namespace ddprun::rdzv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr NodeId kNode{0};
constexpr Round kFirst{0};
constexpr Round kSecond{1};

WorkerFailure failure(int rank, ExitStatus status) {
  WorkerFailure out;
  out.rank = rank;
  out.local_rank = rank;
  out.pid = 1000 + rank;
  out.status = status;
  return out;
}

template <typename Message>
const Message* only(const std::vector<ToNode>& out) {
  return out.size() == 1 ? std::get_if<Message>(&out.front().message) : nullptr;
}

// A leader whose one node has joined and, unless told otherwise, runs.
class OneNode {
 public:
  explicit OneNode(int max_restarts = 0, int workers = 2) : core(RoundConfig{1, max_restarts}) {
    core.step(kNode, NodeHello{workers, "trainer", "127.0.0.1"});
  }
  OneNode& running(Round round = kFirst) {
    core.step(kNode, StoreOpened{round, 4000});
    return *this;
  }
  // A worker fails and the node answers the RoundStop that follows.
  std::vector<ToNode> fail_and_stop(Round round, WorkerFailure cause) {
    core.step(kNode, WorkerFailed{round, std::move(cause)});
    return core.step(kNode, RoundStopped{round, {}});
  }

  RoundCore core;
};

TEST(RoundCore, AsksTheFirstNodeForTheStoreBeforeARoundStarts) {
  RoundCore core(RoundConfig{1, 0});
  EXPECT_THAT(core.step(kNode, NodeHello{2, "trainer", "127.0.0.1"}),
              ElementsAre(ToNode{kNode, OpenStore{kFirst}}));
  RoundStart start;
  start.world_size = 2;
  start.role_world_size = 2;
  start.master_addr = "127.0.0.1";
  start.master_port = 4000;
  EXPECT_THAT(core.step(kNode, StoreOpened{kFirst, 4000}), ElementsAre(ToNode{kNode, start}));
}

TEST(RoundCore, RanksAreContiguousOverNodesAndRoles) {
  RoundCore core(RoundConfig{3, 0});
  EXPECT_THAT(core.step(NodeId{0}, NodeHello{2, "a", "10.0.0.1"}), IsEmpty());
  EXPECT_THAT(core.step(NodeId{1}, NodeHello{3, "b", "10.0.0.2"}), IsEmpty());
  EXPECT_THAT(core.step(NodeId{2}, NodeHello{1, "a", "10.0.0.3"}),
              ElementsAre(ToNode{NodeId{0}, OpenStore{kFirst}}));
  const auto out = core.step(NodeId{0}, StoreOpened{kFirst, 4000});
  ASSERT_THAT(out, SizeIs(3));
  const auto& last = std::get<RoundStart>(out[2].message);
  EXPECT_EQ(last.node_rank, 2);
  EXPECT_EQ(last.node_count, 3);
  EXPECT_EQ(last.rank_offset, 5);
  EXPECT_EQ(last.world_size, 6);
  EXPECT_EQ(last.role_rank_offset, 2);
  EXPECT_EQ(last.role_world_size, 3);
  EXPECT_EQ(last.master_addr, "10.0.0.1");
}

TEST(RoundCore, EndsTheJobWithSuccessWhenAllNodesAreDone) {
  OneNode job;
  job.running();
  const auto out = job.core.step(kNode, WorkersDone{kFirst});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kSucceeded);
  EXPECT_EQ(end->outcome.exit_code, 0);
}

TEST(RoundCore, WaitsForEveryNodeBeforeItEndsTheJob) {
  RoundCore core(RoundConfig{2, 0});
  core.step(NodeId{0}, NodeHello{1, "r", "10.0.0.1"});
  core.step(NodeId{1}, NodeHello{1, "r", "10.0.0.2"});
  core.step(NodeId{0}, StoreOpened{kFirst, 4000});
  EXPECT_THAT(core.step(NodeId{1}, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(NodeId{1}, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(core.step(NodeId{0}, WorkersDone{kFirst}), SizeIs(2));
}

TEST(RoundCore, StopsTheRoundAtOnceWhenAWorkerFails) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  EXPECT_THAT(job.core.step(kNode, WorkerFailed{kFirst, failure(1, ExitStatus::killed(SIGKILL))}),
              ElementsAre(ToNode{kNode, RoundStop{kFirst}}));
}

TEST(RoundCore, StartsTheNextRoundOnlyWhenTheNodeHasStopped) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  EXPECT_THAT(job.fail_and_stop(kFirst, failure(1, ExitStatus::exited(3))),
              ElementsAre(ToNode{kNode, OpenStore{kSecond}}));
  const auto out = job.core.step(kNode, StoreOpened{kSecond, 4001});
  const auto* start = only<RoundStart>(out);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->round, kSecond);
  EXPECT_EQ(start->master_port, 4001);
  EXPECT_EQ(start->restarts, 1);
  ASSERT_TRUE(start->after_failure);
  EXPECT_EQ(start->after_failure->rank, 1);
}

TEST(RoundCore, EndsWithTheFirstCauseWhenTheBudgetIsSpent) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  job.fail_and_stop(kFirst, failure(0, ExitStatus::exited(3)));
  job.running(kSecond);
  job.core.step(kNode, WorkerFailed{kSecond, failure(1, ExitStatus::killed(SIGSEGV, true))});
  job.core.step(kNode, WorkerFailed{kSecond, failure(0, ExitStatus::exited(1))});
  const auto out =
      job.core.step(kNode, RoundStopped{kSecond, {failure(2, ExitStatus::killed(SIGTERM))}});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kFailed);
  EXPECT_EQ(end->outcome.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(end->outcome.cause->rank, 1);
  ASSERT_THAT(end->outcome.consequences, SizeIs(2));
  EXPECT_EQ(end->outcome.consequences[0].rank, 0);
  EXPECT_EQ(end->outcome.consequences[1].rank, 2);
  EXPECT_EQ(end->outcome.restarts, 1);
  EXPECT_EQ(end->outcome.last_round, kSecond);
}

TEST(RoundCore, DoesNotRetryWhatCannotWork) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  WorkerFailure no_program = failure(0, ExitStatus::exited(kExitNotFound));
  no_program.is_worth_a_retry = false;
  const auto out = job.fail_and_stop(kFirst, no_program);
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.exit_code, kExitNotFound);
}

TEST(RoundCore, ALeaveEndsTheJobWithTheSignalsCode) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  EXPECT_THAT(job.core.step(kNode, NodeLeaving{SIGINT}),
              ElementsAre(ToNode{kNode, RoundStop{kFirst}}));
  const auto out = job.core.step(kNode, RoundStopped{kFirst, {}});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(end->outcome.exit_code, 128 + SIGINT);
  EXPECT_EQ(end->outcome.stop_signal, SIGINT);
}

TEST(RoundCore, APreemptionEndsTheJobWithTheCodeThatAsksForARequeue) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.core.step(kNode, NodeLeaving{SIGUSR1, /*is_preemption=*/true});
  const auto out = job.core.step(kNode, RoundStopped{kFirst, {}});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.exit_code, kExitPreempted);
  EXPECT_EQ(end->outcome.stop_signal, SIGUSR1);
}

TEST(RoundCore, ALeaveWhileARestartIsUnderWayEndsTheJob) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.core.step(kNode, WorkerFailed{kFirst, failure(0, ExitStatus::exited(1))});
  EXPECT_THAT(job.core.step(kNode, NodeLeaving{SIGTERM}), IsEmpty());
  const auto out = job.core.step(kNode, RoundStopped{kFirst, {}});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(end->outcome.exit_code, 128 + SIGTERM);
}

TEST(RoundCore, AFailureThatWasFirstAndFinalStaysTheCauseThoughANodeLeavesAfterIt) {
  OneNode job(/*max_restarts=*/0);
  job.running();
  job.core.step(kNode, WorkerFailed{kFirst, failure(0, ExitStatus::exited(7))});
  job.core.step(kNode, NodeLeaving{SIGTERM});
  const auto out = job.core.step(kNode, RoundStopped{kFirst, {}});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kFailed);
  EXPECT_EQ(end->outcome.exit_code, 7);
}

TEST(RoundCore, AFailureOfAnotherNodeIsAConsequenceOfALeave) {
  RoundCore core(RoundConfig{2, 0});
  core.step(NodeId{0}, NodeHello{1, "r", "10.0.0.1"});
  core.step(NodeId{1}, NodeHello{1, "r", "10.0.0.2"});
  core.step(NodeId{0}, StoreOpened{kFirst, 4000});
  core.step(NodeId{1}, WorkerFailed{kFirst, failure(1, ExitStatus::exited(1))});
  core.step(NodeId{0}, NodeLeaving{SIGTERM});
  EXPECT_THAT(core.step(NodeId{0}, RoundStopped{kFirst, {}}), IsEmpty());
  const auto out = core.step(NodeId{1}, RoundStopped{kFirst, {}});
  ASSERT_THAT(out, SizeIs(2));
  EXPECT_EQ(std::get<JobEnd>(out[0].message).outcome.kind, JobOutcome::Kind::kStopped);
}

TEST(RoundCore, ALeaveBeforeTheRoundRunsEndsTheJobWithoutAStop) {
  OneNode job;
  const auto out = job.core.step(kNode, NodeLeaving{SIGHUP});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.exit_code, 128 + SIGHUP);
}

TEST(RoundCore, AStoreThatCannotBeOpenedEndsTheJobWithItsSentence) {
  OneNode job;
  const auto out = job.core.step(kNode, StoreNotOpened{kFirst, "bind: Address already in use"});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.kind, JobOutcome::Kind::kCannotRun);
  EXPECT_EQ(end->outcome.exit_code, kExitCannotRun);
  EXPECT_EQ(end->outcome.sentence, "bind: Address already in use");
}

TEST(RoundCore, AStuckNodeEndsTheJobWithItsOwnCodeAndKeepsTheCause) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.core.step(kNode, WorkerFailed{kFirst, failure(1, ExitStatus::exited(3))});
  const auto out = job.core.step(kNode, NodeStuck{"local rank 0 did not end"});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(end->outcome.exit_code, kExitWorkerStuck);
  ASSERT_TRUE(end->outcome.cause);
  EXPECT_EQ(end->outcome.cause->rank, 1);
}

// Every message in every state where the table says "ignore", and every message of another round.
TEST(RoundCore, IgnoresWhatTheTableSaysItIgnores) {
  const WorkerFailure failed = failure(0, ExitStatus::exited(1));
  const auto messages_of = [&](Round round) {
    return std::vector<ToLeader>{StoreOpened{round, 1}, StoreNotOpened{round, "no"},
                                 WorkerFailed{round, failed}, WorkersDone{round},
                                 RoundStopped{round, {}}};
  };

  RoundCore gathering(RoundConfig{2, 0});
  for (const auto& message : messages_of(kFirst)) {
    EXPECT_THAT(gathering.step(kNode, message), IsEmpty());
  }

  OneNode opening;
  EXPECT_THAT(opening.core.step(kNode, WorkerFailed{kFirst, failed}), IsEmpty());
  EXPECT_THAT(opening.core.step(kNode, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(opening.core.step(kNode, RoundStopped{kFirst, {}}), IsEmpty());
  EXPECT_THAT(opening.core.step(NodeId{1}, NodeHello{1, "late", "10.0.0.9"}), IsEmpty());

  OneNode running;
  running.running();
  EXPECT_THAT(running.core.step(kNode, StoreOpened{kFirst, 1}), IsEmpty());
  EXPECT_THAT(running.core.step(kNode, StoreNotOpened{kFirst, "no"}), IsEmpty());
  EXPECT_THAT(running.core.step(kNode, RoundStopped{kFirst, {}}), IsEmpty());
  for (const auto& message : messages_of(kSecond)) {
    EXPECT_THAT(running.core.step(kNode, message), IsEmpty());
  }

  OneNode stopping;
  stopping.running();
  stopping.core.step(kNode, WorkerFailed{kFirst, failed});
  EXPECT_THAT(stopping.core.step(kNode, StoreOpened{kFirst, 1}), IsEmpty());
  EXPECT_THAT(stopping.core.step(kNode, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(stopping.core.step(NodeId{7}, RoundStopped{kFirst, {}}), IsEmpty());

  OneNode ended;
  ended.running().core.step(kNode, WorkersDone{kFirst});
  ASSERT_TRUE(ended.core.has_ended());
  for (const auto& message : messages_of(kFirst)) {
    EXPECT_THAT(ended.core.step(kNode, message), IsEmpty());
  }
  EXPECT_THAT(ended.core.step(kNode, NodeLeaving{SIGTERM}), IsEmpty());
  EXPECT_THAT(ended.core.step(kNode, NodeStuck{"late"}), IsEmpty());
}

TEST(RoundCore, TellsALatecomerThatTheJobHasEnded) {
  OneNode job;
  job.running().core.step(kNode, WorkersDone{kFirst});
  const auto out = job.core.step(NodeId{5}, NodeHello{1, "late", "10.0.0.9"});
  const auto* end = only<JobEnd>(out);
  ASSERT_NE(end, nullptr);
  EXPECT_EQ(out.front().to, NodeId{5});
}

}  // namespace
}  // namespace ddprun::rdzv
