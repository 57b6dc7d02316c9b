#include "rendezvous/round/round_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <optional>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/limits.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr NodeId kOwn{0};
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
WorkerFailure failure() { return failure(0, ExitStatus::exited(1)); }

template <typename Message>
const Message* only(const std::vector<ToNode>& out) {
  return out.size() == 1 ? std::get_if<Message>(&out.front().message) : nullptr;
}

template <typename Message>
std::vector<NodeId> receivers_of(const std::vector<ToNode>& out) {
  std::vector<NodeId> ids;
  for (const ToNode& each : out) {
    if (std::holds_alternative<Message>(each.message)) ids.push_back(each.to);
  }
  return ids;
}

const JobOutcome& outcome_in(const std::vector<ToNode>& out) {
  for (const ToNode& each : out) {
    if (const auto* end = std::get_if<JobEnd>(&each.message)) return end->outcome;
  }
  static const JobOutcome none{};
  ADD_FAILURE() << "the job has not ended";
  return none;
}

RoundConfig config_of(int min_nodes, int max_nodes, int max_restarts = 0) {
  RoundConfig config;
  config.min_nodes = min_nodes;
  config.max_nodes = max_nodes;
  config.restarts.max_restarts = max_restarts;
  return config;
}

// A leader with a clock that the test moves, and nodes named after their numbers.
class Leader {
 public:
  explicit Leader(RoundConfig config) : config_(config), core(std::move(config)) {}

  NodeHello hello(int id, std::optional<int> node_rank = {}) const {
    NodeHello hello;
    hello.role = "r";
    hello.address = "10.0.0." + std::to_string(id);
    hello.host = "node" + std::to_string(id);
    hello.node_rank = node_rank;
    hello.session = 100 + static_cast<std::uint64_t>(id);
    hello.run_id = config_.run_id;
    hello.min_nodes = config_.min_nodes;
    hello.max_nodes = config_.max_nodes;
    hello.max_restarts = config_.restarts.max_restarts;
    return hello;
  }
  std::vector<ToNode> join(int id, std::optional<int> node_rank = {}) {
    return said(id, hello(id, node_rank));
  }
  // It was in the job before this leader was.
  std::vector<ToNode> join_after(int id, LastRound last) {
    NodeHello again = hello(id);
    again.last_round = last;
    return said(id, again);
  }
  std::vector<ToNode> said(int id, const ToLeader& message) {
    return core.step(now, NodeId{static_cast<std::uint32_t>(id)}, message);
  }
  std::vector<ToNode> link(int id, const LinkEvent& event) {
    return core.step(now, NodeId{static_cast<std::uint32_t>(id)}, event);
  }
  // To the next deadline, which is expected to be this far away.
  std::vector<ToNode> wait(std::chrono::milliseconds duration) {
    now += duration;
    return core.tick(now);
  }
  // All of these nodes have joined, and the first round runs.
  Leader& run(int nodes) {
    for (int id = 0; id < nodes; ++id) join(id);
    if (!core.is_running() && core.deadline()) wait(config_.last_call_timeout);
    said(0, StoreOpened{core.round(), 4000});
    EXPECT_TRUE(core.is_running());
    return *this;
  }

 private:
  RoundConfig config_;

 public:
  CoreTime now{};
  RoundCore core;
};

class OneNode : public Leader {
 public:
  explicit OneNode(int max_restarts = 0) : Leader(config_of(1, 1, max_restarts)) { join(0); }
  OneNode& running(Round round = kFirst) {
    said(0, StoreOpened{round, 4000});
    return *this;
  }
  std::vector<ToNode> fail_and_stop(Round round, WorkerFailure cause) {
    said(0, WorkerFailed{round, std::move(cause)});
    return said(0, RoundStopped{round, {}});
  }
};

// ---- one node

TEST(RoundCore, AsksTheFirstNodeForTheStoreBeforeARoundStarts) {
  Leader job(config_of(1, 1));
  EXPECT_THAT(job.join(0), ElementsAre(ToNode{kOwn, OpenStore{kFirst}}));
  RoundStart start;
  start.master_addr = "10.0.0.0";
  start.master_port = 4000;
  EXPECT_THAT(job.said(0, StoreOpened{kFirst, 4000}), ElementsAre(ToNode{kOwn, start}));
}

TEST(RoundCore, EndsTheJobWithSuccessWhenAllNodesAreDone) {
  OneNode job;
  job.running();
  const auto out = job.said(0, WorkersDone{kFirst});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kSucceeded);
  EXPECT_EQ(outcome_in(out).exit_code, 0);
}

TEST(RoundCore, StopsTheRoundAtOnceWhenAWorkerFails) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  EXPECT_THAT(job.said(0, WorkerFailed{kFirst, failure(1, ExitStatus::killed(SIGKILL))}),
              ElementsAre(ToNode{kOwn, RoundStop{kFirst, RoundStop::Why::kFailure}}));
}

TEST(RoundCore, StartsTheNextRoundOnlyWhenTheNodeHasStopped) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  auto cause = failure(1, ExitStatus::exited(3));
  cause.stderr_tail = {"the report has them"};
  EXPECT_THAT(job.fail_and_stop(kFirst, cause), ElementsAre(ToNode{kOwn, OpenStore{kSecond}}));
  const auto out = job.said(0, StoreOpened{kSecond, 4001});
  const auto* start = only<RoundStart>(out);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->round, kSecond);
  EXPECT_EQ(start->master_port, 4001);
  EXPECT_EQ(start->restarts, 1);
  ASSERT_TRUE(start->after_failure);
  EXPECT_EQ(start->after_failure->rank, 1);
  EXPECT_THAT(start->after_failure->stderr_tail, IsEmpty());
}

TEST(RoundCore, EndsWithTheFirstCauseWhenTheBudgetIsSpent) {
  OneNode job(/*max_restarts=*/1);
  job.running();
  job.fail_and_stop(kFirst, failure(0, ExitStatus::exited(3)));
  job.running(kSecond);
  job.said(0, WorkerFailed{kSecond, failure(1, ExitStatus::killed(SIGSEGV, true))});
  job.said(0, WorkerFailed{kSecond, failure(0, ExitStatus::exited(1))});
  const auto out = job.said(0, RoundStopped{kSecond, {failure(2, ExitStatus::killed(SIGTERM))}});
  const JobOutcome& outcome = outcome_in(out);
  EXPECT_EQ(outcome.kind, JobOutcome::Kind::kFailed);
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(outcome.cause->rank, 1);
  ASSERT_THAT(outcome.consequences, SizeIs(2));
  EXPECT_EQ(outcome.consequences[0].rank, 0);
  EXPECT_EQ(outcome.consequences[1].rank, 2);
  EXPECT_EQ(outcome.restarts, 1);
  EXPECT_EQ(outcome.last_round, kSecond);
}

TEST(RoundCore, DoesNotRetryWhatCannotWork) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  WorkerFailure no_program = failure(0, ExitStatus::exited(kExitNotFound));
  no_program.is_worth_a_retry = false;
  EXPECT_EQ(outcome_in(job.fail_and_stop(kFirst, no_program)).exit_code, kExitNotFound);
}

TEST(RoundCore, ALeaveEndsTheJobWithTheSignalsCode) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  EXPECT_THAT(job.said(0, NodeLeaving{SIGINT}), ElementsAre(ToNode{kOwn, RoundStop{kFirst}}));
  const auto out = job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(outcome_in(out).exit_code, 128 + SIGINT);
  EXPECT_EQ(outcome_in(out).stop_signal, SIGINT);
}

TEST(RoundCore, APreemptionEndsTheJobWithTheCodeThatAsksForARequeue) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.said(0, NodeLeaving{SIGUSR1, /*is_preemption=*/true});
  const auto out = job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(out).exit_code, kExitPreempted);
  EXPECT_EQ(outcome_in(out).stop_signal, SIGUSR1);
}

TEST(RoundCore, ALeaveWhileARestartIsUnderWayEndsTheJob) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.said(0, WorkerFailed{kFirst, failure()});
  EXPECT_THAT(job.said(0, NodeLeaving{SIGTERM}), IsEmpty());
  const auto out = job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(outcome_in(out).exit_code, 128 + SIGTERM);
}

TEST(RoundCore, AFailureThatWasFirstAndFinalStaysTheCauseThoughItsNodeLeavesAfterIt) {
  OneNode job(/*max_restarts=*/0);
  job.running();
  job.said(0, WorkerFailed{kFirst, failure(0, ExitStatus::exited(7))});
  job.said(0, NodeLeaving{SIGTERM});
  const auto out = job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kFailed);
  EXPECT_EQ(outcome_in(out).exit_code, 7);
}

TEST(RoundCore, ALeaveBeforeTheRoundRunsEndsTheJobWithoutAStop) {
  OneNode job;
  EXPECT_EQ(outcome_in(job.said(0, NodeLeaving{SIGHUP})).exit_code, 128 + SIGHUP);
}

TEST(RoundCore, AStoreThatCannotBeOpenedEndsTheJobWithItsSentence) {
  OneNode job;
  const auto out = job.said(0, StoreNotOpened{kFirst, "bind: Address already in use"});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kCannotRun);
  EXPECT_EQ(outcome_in(out).exit_code, kExitCannotRun);
  EXPECT_EQ(outcome_in(out).sentence, "bind: Address already in use");
}

TEST(RoundCore, AStuckNodeEndsTheJobWithItsOwnCodeAndKeepsTheCause) {
  OneNode job(/*max_restarts=*/5);
  job.running();
  job.said(0, WorkerFailed{kFirst, failure(1, ExitStatus::exited(3))});
  const auto out = job.said(0, NodeStuck{"local rank 0 did not end"});
  EXPECT_EQ(outcome_in(out).exit_code, kExitWorkerStuck);
  ASSERT_TRUE(outcome_in(out).cause);
  EXPECT_EQ(outcome_in(out).cause->rank, 1);
}

TEST(RoundCore, KeepsEveryConsequenceOfAJobOnOneNode) {
  OneNode job;
  job.running();
  job.said(0, WorkerFailed{kFirst, failure()});
  const auto out = job.said(0, RoundStopped{kFirst, std::vector<WorkerFailure>(200, failure())});
  EXPECT_THAT(outcome_in(out).consequences, SizeIs(200));
}

// ---- gathering

TEST(RoundCore, RanksAreContiguousOverNodesAndRoles) {
  Leader job(config_of(3, 3));
  const auto hello = [&](int id, int workers, const std::string& role) {
    NodeHello of_role = job.hello(id);
    of_role.local_world_size = workers;
    of_role.role = role;
    return of_role;
  };
  job.said(0, hello(0, 2, "a"));
  job.said(1, hello(1, 3, "b"));
  EXPECT_THAT(job.said(2, hello(2, 1, "a")), Contains(ToNode{kOwn, OpenStore{kFirst}}));
  const auto out = job.said(0, StoreOpened{kFirst, 4000});
  ASSERT_THAT(out, SizeIs(3));
  const auto& last = std::get<RoundStart>(out[2].message);
  EXPECT_EQ(last.node_rank, 2);
  EXPECT_EQ(last.node_count, 3);
  EXPECT_EQ(last.rank_offset, 5);
  EXPECT_EQ(last.world_size, 6);
  EXPECT_EQ(last.role_rank_offset, 2);
  EXPECT_EQ(last.role_world_size, 3);
  EXPECT_EQ(last.master_addr, "10.0.0.0");
}

TEST(RoundCore, TellsANewcomerHowFarTheGatheringIsAndEverybodyNowAndThen) {
  Leader job(config_of(3, 3));
  job.join(0);
  const auto out = job.join(1);
  const auto* progress = only<WaitForNodes>(out);
  ASSERT_NE(progress, nullptr);
  EXPECT_EQ(*progress, (WaitForNodes{2, 3, 3, 600s}));
  EXPECT_EQ(job.core.deadline(), job.now + 10s);
  EXPECT_THAT(receivers_of<WaitForNodes>(job.wait(10s)), SizeIs(2));
}

TEST(RoundCore, TellsAllHowFarTheGatheringIsAfterTenThirtyAndSixtySecondsAndThenEveryMinute) {
  Leader job(config_of(2, 2));
  job.join(0);
  const CoreTime begin = job.now;
  std::vector<std::chrono::seconds> told;
  while (job.now < begin + 200s) {
    if (!receivers_of<WaitForNodes>(job.wait(1s)).empty()) {
      told.push_back(std::chrono::duration_cast<std::chrono::seconds>(job.now - begin));
    }
  }
  EXPECT_THAT(told, ElementsAre(10s, 30s, 60s, 120s, 180s));
}

TEST(RoundCore, SaysWhatItWaitsForBeforeTheFirstNodeComes) {
  Leader job(config_of(2, 3));
  EXPECT_EQ(job.core.wait(job.now + 60s), (WaitForNodes{0, 2, 3, 600s}));
  job.join(0);
  EXPECT_EQ(job.core.wait(job.now + 60s), (WaitForNodes{1, 2, 3, 540s}));
  job.join(1);
  job.join(2);
  EXPECT_EQ(job.core.wait(job.now), std::nullopt);
}

// ---- which nodes are missing, turned away or lost

std::string remark_in(const std::vector<ToNode>& out) {
  const auto* wait = only<WaitForNodes>(out);
  EXPECT_NE(wait, nullptr);
  return wait == nullptr ? "" : wait->remark;
}

TEST(RoundCore, SaysWhichRanksAreMissingWhereRanksAreGiven) {
  RoundConfig config = config_of(4, 4);
  config.has_exact_ranks = true;
  Leader job(config);
  EXPECT_EQ(remark_in(job.join(0, 0)), "node ranks 1, 2 and 3 are missing");
  job.join(1, 1);
  job.join(3, 3);
  const auto out = job.wait(10s);
  ASSERT_THAT(receivers_of<WaitForNodes>(out), SizeIs(3));
  EXPECT_EQ(std::get<WaitForNodes>(out.front().message).remark, "node rank 2 is missing");
  EXPECT_EQ(remark_in(Leader(config_of(4, 4)).join(0, 0)), "") << "any rank will do";
}

// Without a token, whoever reaches the port can send hellos for the rank of another node.
TEST(RoundCore, HellosThatWaitForATakenRankAreLimited) {
  RoundConfig config = config_of(2, 2);
  config.has_exact_ranks = true;
  config.own_node.reset();  // the leader knows that its own node lives
  Leader job(config);
  job.join(0, 0);
  for (int id = 1; id <= limits::kSparesFloor; ++id) {
    EXPECT_EQ(only<Refused>(job.join(id, 0)), nullptr) << id;
  }
  EXPECT_NE(only<Refused>(job.join(1000, 0)), nullptr);
  EXPECT_THAT(receivers_of<Refused>(job.wait(config.silence_limit)), SizeIs(limits::kSparesFloor));
  EXPECT_EQ(only<Refused>(job.join(1001, 0)), nullptr) << "those before were refused";
}

TEST(RoundCore, NamesANodeThatItTurnsAwayUntilItMayTakePart) {
  Leader job(config_of(3, 3, /*max_restarts=*/2));
  job.join(0);
  NodeHello other = job.hello(1);
  other.max_restarts = 3;
  job.said(1, other);
  const std::string why =
      "it asks for --max-restarts=3, the job was started with --max-restarts=2; give every node "
      "the "
      "same";
  EXPECT_THAT(job.core.news(), ElementsAre(LeaderNews(NodeTurnedAway{"node1", "10.0.0.1", why})));
  EXPECT_EQ(remark_in(job.wait(10s)), "node1 (10.0.0.1) was turned away: " + why);
  EXPECT_THAT(job.core.news(), IsEmpty()) << "it was said once";
  job.said(2, other);
  NodeHello corrected = other;
  corrected.max_restarts = 2;
  EXPECT_EQ(remark_in(job.said(3, corrected)), "");
}

TEST(RoundCore, TellsNodesOfOneHostApartThatItTurnsAway) {
  RoundConfig config = config_of(4, 4);
  config.has_exact_ranks = true;
  Leader job(config);
  job.join(0, 0);
  const auto of_one_host = [&](int rank, int max_restarts) {
    NodeHello hello = job.hello(9, rank);
    hello.max_restarts = max_restarts;
    return hello;
  };
  const std::string why =
      " was turned away: it asks for --max-restarts=3, the job was started with --max-restarts=0; "
      "give every node the same";
  job.said(1, of_one_host(1, 3));
  job.said(2, of_one_host(2, 3));
  job.said(3, of_one_host(2, 3));  // started once more
  const std::string second = "node rank 2 on node9 (10.0.0.9)" + why;
  EXPECT_EQ(remark_in(job.wait(10s)),
            "node ranks 1, 2 and 3 are missing; node rank 1 on node9 "
            "(10.0.0.9)" +
                why + "; " + second);
  EXPECT_EQ(remark_in(job.said(4, of_one_host(1, 0))), second);
  job.said(5, of_one_host(7, 0));
  EXPECT_THAT(job.core.wait(job.now)->remark,
              EndsWith("; node9 (10.0.0.9) was turned away: it asks for "
                       "--node-rank=7; the 4 nodes of this job have "
                       "the ranks 0 to 3"));
  EXPECT_EQ(remark_in(job.said(6, of_one_host(3, 0))), second) << "it has another rank now";
}

TEST(RoundCore, TellsReasonsApartForWhichItTurnsNodesWithoutRanksAway) {
  Leader job(config_of(3, 3));
  job.join(0);
  for (const int nodes : {4, 5, 4}) {
    NodeHello other = job.hello(1);
    other.min_nodes = other.max_nodes = nodes;
    job.said(nodes, other);
  }
  EXPECT_THAT(remark_in(job.wait(10s)),
              AllOf(StartsWith("node1 (10.0.0.1) was turned away: it asks for --nnodes=5,"),
                    HasSubstr("; node1 (10.0.0.1) was turned away: it asks for --nnodes=4,")));
}

TEST(RoundCore, TheOutcomeOfAJobThatHadTooFewNodesNamesThoseThatWereTurnedAway) {
  RoundConfig config = config_of(2, 2);
  config.has_exact_ranks = true;
  Leader job(config);
  job.join(0, 0);
  EXPECT_THAT(job.link(0, NodeTurnedAway{"", "10.0.0.9", "it has no token"}), IsEmpty());
  EXPECT_THAT(job.core.news(), SizeIs(1));
  EXPECT_EQ(outcome_in(job.wait(600s)).sentence,
            "1 of 2 nodes came within 600 s; node rank 1 is missing; 10.0.0.9 was turned away: it "
            "has no token");
}

TEST(RoundCore, TheAdviceForTooFewNodesNamesTheOptionsOfItsBackend) {
  for (const bool is_static : {true, false}) {
    RoundConfig config = config_of(2, 2);
    config.has_exact_ranks = is_static;
    Leader job(config);
    job.join(0, 0);
    EXPECT_THAT(outcome_in(job.wait(600s)).sentence,
                is_static ? AllOf(HasSubstr("--master-addr"), HasSubstr("--rdzv-conf=timeout="))
                          : AllOf(HasSubstr("--rdzv-endpoint"), HasSubstr("=join_timeout=")));
  }
}

TEST(RoundCore, NamesALostNodeAtOnce) {
  Leader job = std::move(Leader(config_of(2, 3)).run(3));
  const NodeGone gone{NodeGone::How::kSilent, 2, "node2"};
  const auto out = job.link(2, NodeSilent{});
  EXPECT_THAT(out, Contains(ToNode{NodeId{1}, RoundStop{kFirst, RoundStop::Why::kFailure, gone}}));
  EXPECT_THAT(job.core.news(), ElementsAre(LeaderNews(gone)));

  Leader waits(config_of(3, 3));
  waits.join(0);
  waits.join(1);
  waits.link(1, NodeSilent{});
  EXPECT_THAT(waits.core.news(),
              ElementsAre(LeaderNews(NodeGone{NodeGone::How::kSilent, -1, "node1"})));
  EXPECT_EQ(describe(std::get<NodeGone>(waits.core.news().front())),
            "a node that waited (node1) was lost: nothing was heard of it for too long");

  Leader over(config_of(2, 2));
  over.run(2);
  over.said(0, StopAsked{SIGTERM});
  over.said(0, RoundStopped{kFirst, {}});
  over.said(1, RoundStopped{kFirst, {}});
  ASSERT_TRUE(over.core.has_ended());
  over.link(1, NodeSilent{});
  EXPECT_THAT(over.core.news(), IsEmpty()) << "nodes go when the job has ended";
}

TEST(RoundCore, GivesTheOthersALastCallOnceThereAreEnough) {
  Leader job(config_of(1, 3));
  job.join(0);
  job.now += 20s;
  job.core.tick(job.now);
  job.join(1);
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(9s)), IsEmpty());
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(1s)), ElementsAre(kOwn));
}

TEST(RoundCore, WithdrawsTheLastCallWhenTooFewAreLeft) {
  Leader job(config_of(2, 3));
  job.join(0);
  job.join(1);
  job.link(1, NodeSilent{});
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(31s)), IsEmpty());
  job.join(2);
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(30s)), ElementsAre(kOwn));
}

TEST(RoundCore, EndsTheJobWhenTooFewCameInTime) {
  Leader job(config_of(2, 2));
  job.join(0);
  const auto out = job.wait(600s);
  EXPECT_EQ(outcome_in(out).exit_code, kExitRendezvousTimeout);
  EXPECT_THAT(outcome_in(out).sentence, HasSubstr("1 of 2 nodes came within 600 s"));
}

TEST(RoundCore, ALeaderWithoutANodeOfItsOwnWaitsForTheFirstOneAsLongAsItTakes) {
  RoundConfig config = config_of(1, 2);
  config.own_node.reset();
  Leader job(config);
  job.core.tick(job.now);
  EXPECT_EQ(job.core.deadline(), std::nullopt);
  job.now += 10'000s;
  job.join(1);
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(30s)), ElementsAre(NodeId{1}));
  job.said(1, StoreOpened{kFirst, 1});
  job.said(1, NodeLeaving{SIGTERM});  // which ends nothing
  EXPECT_THAT(job.wait(600s), IsEmpty());
  ASSERT_NE(job.core.outcome(), nullptr);
  EXPECT_EQ(job.core.outcome()->exit_code, kExitBelowMinimum);
}

// ---- who may join

TEST(RoundCore, RefusesANodeThatWasStartedForSomethingElseAndSaysWhatToChange) {
  RoundConfig config = config_of(2, 8, 3);
  config.run_id = "job-1";
  Leader job(config);
  struct Case {
    std::function<void(NodeHello&)> change;
    std::string sentence;
  };
  const Case cases[] = {
      {[](NodeHello& h) { h.run_id = "job-2"; }, "job 'job-2'"},
      {[](NodeHello& h) { h.min_nodes = h.max_nodes = 4; },
       "node7 asks for --nnodes=4, the job was started with --nnodes=2:8; give every node the "
       "same"},
      {[](NodeHello& h) { h.max_restarts = 0; }, "--max-restarts=3"},
  };
  for (const Case& each : cases) {
    NodeHello hello = job.hello(7);
    each.change(hello);
    const auto out = job.said(7, hello);
    const auto* refused = only<Refused>(out);
    ASSERT_NE(refused, nullptr) << each.sentence;
    EXPECT_THAT(refused->sentence, HasSubstr(each.sentence));
    EXPECT_FALSE(job.core.has(NodeId{7}));
  }
}

TEST(RoundCore, StaticRanksAreUniqueAndInRange) {
  RoundConfig config = config_of(2, 2);
  config.has_exact_ranks = true;
  Leader job(config);
  EXPECT_EQ(only<Refused>(job.join(5)) != nullptr, true);  // asks for none
  EXPECT_THAT(only<Refused>(job.join(5, 2))->sentence, HasSubstr("ranks 0 to 1"));
  job.join(0, 1);
  EXPECT_THAT(only<Refused>(job.join(6, 1))->sentence,
              AllOf(HasSubstr("--node-rank=1 is taken by node0"), HasSubstr("of its own")));
  job.join(1, 0);
  const auto out = job.said(1, StoreOpened{kFirst, 1});
  EXPECT_THAT(receivers_of<RoundStart>(out), ElementsAre(NodeId{1}, NodeId{0}));
}

TEST(RoundCore, EqualHintsAreOrderedAsTheyCameWithOneWarning) {
  Leader job(config_of(2, 2));
  job.join(0, 1);
  const auto out = job.join(1, 1);
  EXPECT_THAT(receivers_of<Warning>(out), ElementsAre(NodeId{1}));
  EXPECT_THAT(receivers_of<OpenStore>(out), ElementsAre(kOwn));
}

TEST(RoundCore, ANewcomerTakesTheRankOfANodeWhoseConnectionIsBroken) {
  Leader job(config_of(2, 2));
  job.join(0, 0);
  job.join(1, 1);
  job.said(0, StoreOpened{kFirst, 1});
  job.link(1, NodeDisconnected{});
  EXPECT_THAT(receivers_of<RoundStop>(job.join(2, 1)), ElementsAre(kOwn));
  job.said(0, RoundStopped{kFirst, {}});
  job.wait(1s);  // the first round was short
  const auto out = job.said(0, StoreOpened{kSecond, 2});
  EXPECT_THAT(receivers_of<RoundStart>(out), ElementsAre(kOwn, NodeId{2}));
  const auto& start = std::get<RoundStart>(out.front().message);
  EXPECT_EQ(start.after_loss->how, NodeGone::How::kReplaced);
  EXPECT_EQ(start.nodes_joined, 1);
}

// Node 1 runs, node 2 asks for its rank: it may be node 1's successor on the same machine, or a mistake.
class TakenRank : public ::testing::Test {
 protected:
  static RoundConfig exact_ranks() {
    RoundConfig config = config_of(2, 2);
    config.has_exact_ranks = true;
    return config;
  }
  TakenRank() : job(exact_ranks()) {
    job.join(0, 0);
    job.join(1, 1);
    job.said(0, StoreOpened{kFirst, 1});
    const auto out = job.join(2, 1);
    EXPECT_THAT(only<Warning>(out)->sentence,
                AllOf(HasSubstr("--node-rank=1 is taken by node1"), HasSubstr("at most 6 s")));
    EXPECT_EQ(job.core.deadline(), job.now + 6s);
    EXPECT_TRUE(job.core.is_running());
  }

  Leader job;
};

TEST_F(TakenRank, IsFreeWhenTheOthersConnectionBreaks) {
  const auto out = job.link(1, NodeDisconnected{});
  EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn));
  EXPECT_FALSE(job.core.has(NodeId{1}));
  job.said(0, RoundStopped{kFirst, {}});
  job.wait(1s);
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{kSecond, 2})),
              ElementsAre(kOwn, NodeId{2}));
}

TEST_F(TakenRank, IsFreeWhenTheOtherIsSilentOrLeaves) {
  job.link(1, NodeSilent{});
  EXPECT_TRUE(job.core.has(NodeId{2}));
  job.join(3, 1);
  job.said(2, NodeLeaving{SIGTERM});
  job.said(0, RoundStopped{kFirst, {}});
  job.wait(1s);
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{kSecond, 2})),
              ElementsAre(kOwn, NodeId{3}));
}

TEST_F(TakenRank, OfANodeThatLivesIsRefused) {
  job.now += 5999ms;
  EXPECT_THAT(job.core.tick(job.now), IsEmpty());
  const auto out = job.wait(1ms);
  EXPECT_THAT(only<Refused>(out)->sentence,
              AllOf(HasSubstr("--node-rank=1 is taken by node1"), HasSubstr("of its own")));
  EXPECT_FALSE(job.core.has(NodeId{2}));
  EXPECT_EQ(job.core.deadline(), std::nullopt);
  EXPECT_TRUE(job.core.is_running());
}

// What the nodes have sent meanwhile is not read yet.
TEST_F(TakenRank, IsAwaitedAgainByALeaderThatWasPaused) {
  EXPECT_THAT(job.wait(60s), IsEmpty());
  EXPECT_THAT(receivers_of<RoundStop>(job.link(1, NodeDisconnected{})), ElementsAre(kOwn));
}

TEST_F(TakenRank, IsForgottenWithWhoWaitsForIt) {
  EXPECT_THAT(job.link(2, NodeDisconnected{}), IsEmpty());
  EXPECT_FALSE(job.core.has(NodeId{2}));
  job.join(3, 1);
  EXPECT_THAT(receivers_of<DeclaredLost>(job.link(3, NodeSilent{})), ElementsAre(NodeId{3}));
  EXPECT_FALSE(job.core.has(NodeId{3}));
  job.link(1, NodeDisconnected{});
  EXPECT_TRUE(job.core.is_running());
}

TEST_F(TakenRank, WhoWaitsIsToldOfTheEnd) {
  job.said(0, WorkersDone{kFirst});
  EXPECT_THAT(receivers_of<JobEnd>(job.said(1, WorkersDone{kFirst})),
              ElementsAre(kOwn, NodeId{1}, NodeId{2}));
  for (const int node : {0, 1, 2}) job.said(node, Goodbye{});
  EXPECT_TRUE(job.core.was_everyone_told());
}

// ---- the budget

TEST(RoundCore, WaitsForEveryNodeBeforeItEndsTheJob) {
  Leader job(config_of(2, 2));
  job.run(2);
  EXPECT_THAT(job.said(1, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(job.said(1, WorkersDone{kFirst}), IsEmpty());
  EXPECT_THAT(receivers_of<JobEnd>(job.said(0, WorkersDone{kFirst})), SizeIs(2));
}

TEST(RoundCore, AFailureOfAnotherNodeIsAConsequenceOfALeave) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.said(1, WorkerFailed{kFirst, failure()});
  job.said(0, NodeLeaving{SIGTERM});
  EXPECT_THAT(job.said(0, RoundStopped{kFirst, {}}), IsEmpty());
  const auto out = job.said(1, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kStopped);
}

TEST(RoundCore, AFailureThatALostNodeExplainsCostsNothing) {
  Leader job(config_of(1, 2));
  job.run(2);
  job.now += 20s;
  job.link(1, NodeDisconnected{});
  job.said(0, WorkerFailed{kFirst, failure()});  // 40 ms after, as with Gloo
  EXPECT_THAT(job.said(0, RoundStopped{kFirst, {}}), IsEmpty());
  EXPECT_THAT(job.wait(300ms), ElementsAre(ToNode{kOwn, OpenStore{kSecond}}));
  const auto out = job.said(0, StoreOpened{kSecond, 1});
  const auto* start = only<RoundStart>(out);
  ASSERT_NE(start, nullptr);
  EXPECT_EQ(start->restarts, 0);
  EXPECT_FALSE(start->after_failure);
  EXPECT_EQ(describe(*start->after_loss),
            "node 1 (node1) was lost: its connection broke and did not come back");
}

TEST(RoundCore, AFailureThatANodeReportedBeforeItWasLostIsCharged) {
  Leader job(config_of(1, 2, 1));
  job.run(2);
  job.now += 20s;
  job.said(1, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, {}});
  job.link(1, NodeSilent{});
  EXPECT_EQ(job.core.restarts(), 1);
  EXPECT_EQ(job.core.round(), kSecond);
}

// Found by the simulator: its own later leave does not make a consequence a cause.
TEST(RoundCore, AConsequenceOfALossStaysOneThoughItsNodeLeavesToo) {
  Leader job(config_of(1, 3));
  job.run(3);
  job.now += 20s;
  job.link(1, NodeDisconnected{});
  job.said(2, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, {}});
  job.said(2, NodeLeaving{SIGTERM});
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(300ms)), ElementsAre(kOwn));
}

TEST(RoundCore, APauseFollowsAFailureWhereThereIsABackOff) {
  RoundConfig config = config_of(1, 1, 5);
  config.restarts.pause_after_failure = {100ms, 150ms};
  Leader job(config);
  job.run(1);
  for (const auto pause : {100ms, 150ms, 150ms}) {
    job.said(0, WorkerFailed{job.core.round(), failure()});
    EXPECT_THAT(job.said(0, RoundStopped{job.core.round(), {}}), IsEmpty());
    EXPECT_THAT(job.wait(pause - 1ms), IsEmpty());
    EXPECT_THAT(receivers_of<OpenStore>(job.wait(1ms)), SizeIs(1));
    job.said(0, StoreOpened{job.core.round(), 1});
  }
}

// ---- membership

TEST(RoundCore, ABrokenConnectionThatIsResumedInTimeEndsNothing) {
  Leader job(config_of(1, 2));
  job.run(2);
  EXPECT_THAT(job.link(1, NodeDisconnected{}), IsEmpty());
  EXPECT_EQ(job.core.deadline(), job.now + 300ms);
  EXPECT_TRUE(job.core.can_resume(NodeId{1}, 101));
  EXPECT_FALSE(job.core.can_resume(NodeId{1}, 102));
  EXPECT_THAT(job.link(1, NodeResumed{}), IsEmpty());
  EXPECT_EQ(job.core.deadline(), std::nullopt);
  job.link(1, NodeDisconnected{});
  EXPECT_THAT(receivers_of<RoundStop>(job.wait(300ms)), ElementsAre(kOwn));
  EXPECT_FALSE(job.core.can_resume(NodeId{1}, 101));
}

TEST(RoundCore, ASilentNodeIsLostAndHearsOfIt) {
  Leader job(config_of(1, 2));
  job.run(2);
  const auto out = job.link(1, NodeSilent{});
  EXPECT_THAT(receivers_of<DeclaredLost>(out), ElementsAre(NodeId{1}));
  EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn));
}

TEST(RoundCore, ANewcomerWithRoomEndsTheRoundUnlessSomebodyHasFinished) {
  Leader job(config_of(1, 3));
  job.run(1);
  EXPECT_THAT(receivers_of<RoundStop>(job.join(1)), ElementsAre(kOwn));
  job.said(0, RoundStopped{kFirst, {}});
  const auto started = job.said(0, StoreOpened{kSecond, 1});
  EXPECT_THAT(receivers_of<RoundStart>(started), SizeIs(2));
  EXPECT_TRUE(std::get<RoundStart>(started.front().message).after_arrival);
  job.said(1, SomeWorkersDone{kSecond});
  const auto out = job.join(2);
  const auto* spare = only<WaitAsSpare>(out);
  ASSERT_NE(spare, nullptr);
  EXPECT_EQ(spare->why, WaitAsSpare::Why::kJobIsFinishing);
}

TEST(RoundCore, ASpareTakesThePlaceOfALostNode) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.now += 20s;
  const auto waiting = job.join(2);
  ASSERT_NE(only<WaitAsSpare>(waiting), nullptr);
  job.link(1, NodeSilent{});
  EXPECT_THAT(receivers_of<OpenStore>(job.said(0, RoundStopped{kFirst, {}})), ElementsAre(kOwn));
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{kSecond, 1})),
              ElementsAre(kOwn, NodeId{2}));
}

TEST(RoundCore, OnlySoManySparesWait) {
  Leader job(config_of(2, 2));
  job.run(2);
  int refused = 0;
  for (int id = 2; id < 4'000; ++id) {
    const auto out = job.join(id);
    if (const auto* refusal = only<Refused>(out)) {
      refused += 1;
      EXPECT_THAT(refusal->sentence, HasSubstr("2, and 64 spares wait already"));
    }
  }
  EXPECT_EQ(refused, 4'000 - 2 - 64);
  EXPECT_THAT(job.core.view(job.now).members, SizeIs(2 + 64));
  // As many as the job has nodes, where it has more.
  Leader large(config_of(1, 100));
  for (int id = 0; id < 200; ++id) EXPECT_EQ(only<Refused>(large.join(id)), nullptr) << id;
  EXPECT_NE(only<Refused>(large.join(200)), nullptr);
  // Nor are all the nodes of a large network told of the end of a job that was never theirs.
  job.said(0, NodeLeaving{SIGTERM});
  for (const int id : {0, 1}) job.said(id, RoundStopped{kFirst, {}});
  ASSERT_TRUE(job.core.has_ended());
  EXPECT_NE(only<Refused>(job.join(5'000)), nullptr);
}

TEST(RoundCore, BelowTheMinimumItGathersAgainAndThenGivesUp) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.now += 20s;
  job.link(1, NodeSilent{});
  EXPECT_THAT(receivers_of<WaitForNodes>(job.said(0, RoundStopped{kFirst, {}})), ElementsAre(kOwn));
  const auto out = job.wait(600s);
  EXPECT_EQ(outcome_in(out).exit_code, kExitBelowMinimum);
  EXPECT_THAT(outcome_in(out).sentence,
              AllOf(HasSubstr("1 of 2 nodes"), HasSubstr("node 1 (node1)")));
  ASSERT_TRUE(outcome_in(out).lost_node);
  EXPECT_EQ(outcome_in(out).lost_node->how, NodeGone::How::kSilent);
}

TEST(RoundCore, BelowTheMinimumTheNextNodeStartsTheRoundWithoutALastCall) {
  Leader job(config_of(2, 4));
  job.run(2);
  job.now += 20s;
  job.link(1, NodeSilent{});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_THAT(receivers_of<OpenStore>(job.join(2)), ElementsAre(kOwn));
}

TEST(RoundCore, QuickLossesAreFollowedByGrowingPauses) {
  Leader job(config_of(2, 3));
  job.run(3);
  int next_node = 3;
  const auto lose_one = [&] {
    job.link(next_node - 1, NodeSilent{});
    auto out = job.said(1, RoundStopped{job.core.round(), {}});
    const auto last = job.said(0, RoundStopped{job.core.round(), {}});
    out.insert(out.end(), last.begin(), last.end());
    return out;
  };
  EXPECT_THAT(receivers_of<OpenStore>(lose_one()), SizeIs(1)) << "the first one";
  job.said(0, StoreOpened{job.core.round(), 1});
  for (const auto pause : {1s, 2s, 4s}) {
    job.join(next_node++);  // with room: a round that includes it
    job.said(1, RoundStopped{job.core.round(), {}});
    job.said(0, RoundStopped{job.core.round(), {}});
    job.said(0, StoreOpened{job.core.round(), 1});
    EXPECT_THAT(receivers_of<OpenStore>(lose_one()), IsEmpty());
    EXPECT_THAT(receivers_of<OpenStore>(job.wait(pause - 1ms)), IsEmpty());
    EXPECT_THAT(receivers_of<OpenStore>(job.wait(1ms)), SizeIs(1));
    job.said(0, StoreOpened{job.core.round(), 1});
  }
}

TEST(RoundCore, ALeavingNodeHoldsUpNobody) {
  Leader job(config_of(1, 2));
  job.run(2);
  const NodeGone left{NodeGone::How::kLeft, 1, "node1"};
  EXPECT_THAT(job.said(1, NodeLeaving{SIGTERM}),
              ElementsAre(ToNode{kOwn, RoundStop{kFirst, RoundStop::Why::kPlanned, left}}));
  EXPECT_THAT(job.said(0, RoundStopped{kFirst, {}}), ElementsAre(ToNode{kOwn, OpenStore{kSecond}}));
  EXPECT_EQ(job.core.restarts(), 0);
}

TEST(RoundCore, SaysWhetherARoundStopsForAFailureOrAsPlanned) {
  using Why = RoundStop::Why;
  const auto why = [](auto&& stop) {
    Leader job(config_of(1, 3));
    job.run(2);
    const auto out = stop(job);
    const auto found = std::ranges::find_if(
        out, [](const ToNode& each) { return std::holds_alternative<RoundStop>(each.message); });
    if (found == out.end()) return std::optional<Why>();
    return std::optional(std::get<RoundStop>(found->message).why);
  };
  EXPECT_EQ(why([](Leader& job) {
              return job.said(1, WorkerFailed{kFirst, failure()});
            }),
            Why::kFailure);
  EXPECT_EQ(why([](Leader& job) { return job.link(1, NodeSilent{}); }), Why::kFailure);
  EXPECT_EQ(why([](Leader& job) { return job.said(1, NodeStuck{"it hangs"}); }), Why::kFailure);
  EXPECT_EQ(why([](Leader& job) {
              job.link(1, NodeDisconnected{});
              return job.wait(300ms);
            }),
            Why::kFailure);
  EXPECT_EQ(why([](Leader& job) { return job.said(1, NodeLeaving{SIGTERM}); }), Why::kPlanned);
  EXPECT_EQ(why([](Leader& job) { return job.said(0, NodeLeaving{SIGTERM}); }), Why::kPlanned);
  EXPECT_EQ(why([](Leader& job) { return job.said(0, RestartAsked{kFirst}); }), Why::kPlanned);
  EXPECT_EQ(why([](Leader& job) { return job.said(0, StopAsked{SIGTERM}); }), Why::kPlanned);
  EXPECT_EQ(why([](Leader& job) { return job.join(2); }), Why::kPlanned);
}

TEST(RoundCore, AStuckNodeOfManyIsLeftBehind) {
  Leader job(config_of(1, 2));
  job.run(2);
  const auto out = job.said(1, NodeStuck{"local rank 0 did not end"});
  EXPECT_THAT(receivers_of<JobEnd>(out), ElementsAre(NodeId{1}));
  EXPECT_EQ(outcome_in(out).exit_code, kExitWorkerStuck);
  EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn));
}

TEST(RoundCore, TheLossOfTheStoresHostOpensTheNextRoundElsewhere) {
  RoundConfig config = config_of(1, 2);
  config.own_node.reset();
  Leader job(config);
  job.join(0);
  job.join(1);
  EXPECT_THAT(job.link(0, NodeSilent{}), Contains(ToNode{NodeId{1}, OpenStore{kSecond}}));
  EXPECT_THAT(job.said(1, StoreOpened{kFirst, 1}), IsEmpty());
  EXPECT_THAT(receivers_of<RoundStart>(job.said(1, StoreOpened{kSecond, 1})), SizeIs(1));
}

TEST(RoundCore, WhoComesWhileTheStoreIsOpenedIsInTheRound) {
  Leader job(config_of(1, 3));
  job.join(0);
  job.wait(30s);
  EXPECT_THAT(job.join(1), IsEmpty());
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{kFirst, 1})), SizeIs(2));
}

// Under etcd the leader's own node may be lost as any other, and has the same number when it joins anew.
TEST(RoundCore, ANodeThatJoinsAnewUnderItsNumberIsInTheGroupOnce) {
  RoundConfig config = config_of(2, 3);
  config.own_node.reset();
  config.restarts.max_restarts = 3;
  Leader job(config);
  job.run(2);
  job.link(0, NodeSilent{});
  job.said(1, RoundStopped{kFirst, {}});
  ASSERT_THAT(receivers_of<OpenStore>(job.join(0)), ElementsAre(NodeId{1}));
  const auto out = job.said(1, StoreOpened{job.core.round(), 1});
  ASSERT_THAT(receivers_of<RoundStart>(out), ::testing::UnorderedElementsAre(kOwn, NodeId{1}));
  for (const ToNode& each : out) {
    if (const auto* start = std::get_if<RoundStart>(&each.message)) {
      EXPECT_EQ(start->world_size, 2);
    }
  }
}

// ---- nodes whose agent is heard and does not do what it is told to

TEST(RoundCore, AHostThatDoesNotOpenTheStoreIsLostAndAnotherOneIsAsked) {
  RoundConfig config = config_of(1, 2);
  config.own_node.reset();
  Leader job(config);
  job.join(0);
  job.join(1);
  EXPECT_THAT(job.wait(9'999ms), IsEmpty());
  EXPECT_THAT(job.wait(1ms),
              ElementsAre(ToNode{kOwn, DeclaredLost{}}, ToNode{NodeId{1}, OpenStore{kSecond}}));
  const auto started = job.said(1, StoreOpened{kSecond, 1});
  ASSERT_THAT(receivers_of<RoundStart>(started), ElementsAre(NodeId{1}));
}

TEST(RoundCore, TheLeadersOwnNodeThatDoesNotOpenTheStoreEndsTheJob) {
  Leader job(config_of(1, 2));
  job.join(0);
  job.join(1);
  const JobOutcome outcome = outcome_in(job.wait(10s));
  EXPECT_EQ(outcome.exit_code, kExitCannotRun);
  EXPECT_THAT(outcome.sentence,
              HasSubstr("did not open the store that workers meet at within 10 s"));
}

// As long as the node with the shorter time has its own limit, nobody waits for the longer one.
TEST(RoundCore, ANodeThatDoesNotStopInItsOwnTimeIsLostAndNoSlowerOneIs) {
  Leader job(config_of(1, 3));
  job.join(0);
  NodeHello quick = job.hello(1), slow = job.hello(2);
  quick.shutdown_timeout = 5s;
  slow.shutdown_timeout = 100s;
  job.said(1, quick);
  job.said(2, slow);
  job.said(0, StoreOpened{kFirst, 1});
  job.said(0, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_THAT(job.wait(44'999ms), IsEmpty());
  EXPECT_THAT(job.wait(1ms), ElementsAre(ToNode{NodeId{1}, DeclaredLost{}}));
  EXPECT_THAT(job.wait(94'999ms), IsEmpty()) << "40 s after its 100 s";
  const auto out = job.said(2, RoundStopped{kFirst, {}});
  ASSERT_THAT(receivers_of<OpenStore>(out), ElementsAre(kOwn));
  const auto started = job.said(0, StoreOpened{kSecond, 1});
  const RoundStart& start = std::get<RoundStart>(started.front().message);
  ASSERT_TRUE(start.after_loss);
  EXPECT_EQ(start.after_loss->how, NodeGone::How::kUnresponsive);
  EXPECT_EQ(start.node_count, 2);
}

TEST(RoundCore, ANodeThatDoesNotStopDoesNotHoldUpTheEndOfTheJob) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.said(0, StopAsked{SIGTERM});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(outcome_in(job.wait(70s)).stop_signal, SIGTERM);
}

TEST(RoundCore, TheLeadersOwnNodeHasAllTheTimeToStop) {
  Leader job(config_of(1, 1));
  job.run(1);
  job.said(0, NodeLeaving{SIGUSR1, /*is_preemption=*/true});
  EXPECT_EQ(job.core.deadline(), std::nullopt);
}

TEST(RoundCore, ALeaderThatWasPausedItselfGivesTheOthersMoreTime) {
  Leader job(config_of(1, 2, /*max_restarts=*/1));
  job.run(2);
  job.said(0, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_THAT(job.wait(600s), IsEmpty()) << "what the node has said meanwhile is not read yet";
  EXPECT_EQ(job.core.deadline(), job.now + 10s);
  EXPECT_THAT(receivers_of<OpenStore>(job.said(1, RoundStopped{kFirst, {}})), ElementsAre(kOwn));
  EXPECT_THAT(job.wait(600s), IsEmpty()) << "nor that the store is open";
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{kSecond, 1})), SizeIs(2));
}

TEST(RoundCore, WhoSaysNothingToTheEndOfTheJobIsNotWaitedForForEver) {
  OneNode job;
  job.running().said(0, WorkersDone{kFirst});
  job.wait(9'999ms);
  EXPECT_FALSE(job.core.was_everyone_told());
  job.wait(1ms);
  EXPECT_TRUE(job.core.was_everyone_told());
  EXPECT_EQ(job.core.deadline(), std::nullopt);
}

// ---- a leader that was started again, and nodes that know more of the job than it does

TEST(RoundCore, ANewLeaderGoesOnAfterTheLastRoundThatANodeKnowsAndForgetsNoRestart) {
  Leader job(config_of(2, 2, /*max_restarts=*/3));
  job.join(0);
  const auto out = job.join_after(1, {.round = Round{6}, .node_count = 2, .restarts = 2});
  EXPECT_THAT(out, Contains(ToNode{kOwn, OpenStore{Round{7}}}));
  const auto started = job.said(0, StoreOpened{Round{7}, 4000});
  ASSERT_EQ(receivers_of<RoundStart>(started), (std::vector{kOwn, NodeId{1}}));
  const RoundStart& start = std::get<RoundStart>(started.front().message);
  EXPECT_EQ(start.restarts, 2);
  EXPECT_EQ(start.nodes_joined, 0) << "nothing has changed for anybody";
  job.said(1, WorkerFailed{Round{7}, failure()});
  job.said(0, RoundStopped{Round{7}, {}});
  job.said(1, RoundStopped{Round{7}, {}});
  EXPECT_EQ(job.core.restarts(), 3) << "the last one";
  job.said(0, StoreOpened{Round{8}, 4000});
  job.said(1, WorkerFailed{Round{8}, failure()});
  job.said(0, RoundStopped{Round{8}, {}});
  EXPECT_EQ(outcome_in(job.said(1, RoundStopped{Round{8}, {}})).kind, JobOutcome::Kind::kFailed);
}

TEST(RoundCore, ANewLeaderTakesTheHighestOfWhatItsNodesKnow) {
  Leader job(config_of(3, 3, /*max_restarts=*/3));
  job.join_after(0, {.round = Round{2}, .node_count = 3, .restarts = 2});
  job.join_after(1, {.round = Round{9}, .node_count = 3, .restarts = 1});
  const auto out = job.join_after(2, {.round = Round{4}, .node_count = 3, .restarts = 0});
  EXPECT_THAT(out, Contains(ToNode{kOwn, OpenStore{Round{10}}}));
  EXPECT_EQ(job.core.restarts(), 2);
}

TEST(RoundCore, ANewLeaderAwaitsTheNodesOfTheLastRoundAndNoLastCall) {
  Leader job(config_of(1, 4));
  job.join(0);
  EXPECT_THAT(receivers_of<OpenStore>(job.join_after(1, {Round{0}, 3, 0})), IsEmpty());
  EXPECT_THAT(receivers_of<OpenStore>(job.join_after(2, {Round{0}, 3, 0})), ElementsAre(kOwn));
}

TEST(RoundCore, ANewLeaderGivesUpOnANodeOfTheLastRoundThatDoesNotComeBack) {
  Leader job(config_of(1, 4));
  job.join(0);
  job.join_after(1, {Round{0}, 3, 0});
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(9'999ms)), IsEmpty());
  EXPECT_THAT(receivers_of<OpenStore>(job.wait(1ms)), ElementsAre(kOwn));
}

TEST(RoundCore, ANewLeaderThatHasBegunAloneGoesOnWithAHigherRoundWhenANodeOfThePastComes) {
  Leader job(config_of(1, 2, /*max_restarts=*/3));
  job.run(1);
  ASSERT_EQ(job.core.round(), kFirst);
  EXPECT_EQ(receivers_of<RoundStop>(job.join_after(1, {Round{6}, 2, 2})), std::vector{kOwn});
  EXPECT_THAT(job.said(0, RoundStopped{kFirst, {}}),
              ElementsAre(ToNode{kOwn, OpenStore{Round{7}}}));
  const auto started = job.said(0, StoreOpened{Round{7}, 4000});
  ASSERT_THAT(receivers_of<RoundStart>(started), SizeIs(2));
  EXPECT_EQ(std::get<RoundStart>(started.front().message).restarts, 2);
}

TEST(RoundCore, ANodeOfThePastThatComesWhileTheStoreIsOpenedIsInARoundThatItTakes) {
  Leader job(config_of(1, 2));
  job.join(0);
  job.wait(30s);
  EXPECT_THAT(job.join_after(1, {Round{6}, 2, 0}), IsEmpty());
  EXPECT_THAT(job.said(0, StoreOpened{kFirst, 1}), ElementsAre(ToNode{kOwn, OpenStore{Round{7}}}));
  EXPECT_THAT(receivers_of<RoundStart>(job.said(0, StoreOpened{Round{7}, 1})), SizeIs(2));
}

TEST(RoundCore, ANodeThatWasDeclaredLostTellsItsLeaderNothingNew) {
  Leader job(config_of(1, 2, /*max_restarts=*/3));
  job.run(2);
  job.link(1, NodeSilent{});
  job.said(0, RoundStopped{kFirst, {}});
  job.said(0, StoreOpened{kSecond, 1});
  job.join_after(2, {kFirst, 2, 0});
  EXPECT_THAT(job.said(0, RoundStopped{kSecond, {}}),
              ElementsAre(ToNode{kOwn, OpenStore{Round{2}}}));
}

TEST(RoundCore, WhatANodeSaysOfThePastHasBounds) {
  Leader job(config_of(2, 2, /*max_restarts=*/3));
  job.join(0);
  for (const std::uint32_t round : {1'000'000'001U, 0xFFFFFFFEU, 0xFFFFFFFFU}) {
    const auto refused = job.join_after(1, {Round{round}, 2, 0});
    ASSERT_NE(only<Refused>(refused), nullptr) << round;
    EXPECT_THAT(only<Refused>(refused)->sentence,
                HasSubstr("node1 says that it took part in round"));
  }
  job.join_after(1, {Round{1'000'000'000}, 1 << 30, 0x7FFFFFFF});
  EXPECT_EQ(job.core.round(), Round{1'000'000'001});
  EXPECT_EQ(job.core.restarts(), 3);
}

// ---- the end

TEST(RoundCore, TellsALatecomerThatTheJobHasEndedAndWaitsUntilEverybodyKnows) {
  OneNode job;
  job.running().said(0, WorkersDone{kFirst});
  EXPECT_FALSE(job.core.was_everyone_told());
  job.said(0, Goodbye{});
  EXPECT_TRUE(job.core.was_everyone_told());
  const auto out = job.join(5);
  ASSERT_NE(only<JobEnd>(out), nullptr);
  EXPECT_EQ(out.front().to, NodeId{5});
  EXPECT_FALSE(job.core.was_everyone_told());
  job.link(5, NodeDisconnected{});
  job.wait(300ms);
  EXPECT_TRUE(job.core.was_everyone_told());
}

TEST(RoundCore, ANodeOfAnotherJobIsNotToldOfTheEndOfThisOne) {
  OneNode job;
  job.running().said(0, WorkersDone{kFirst});
  NodeHello stranger = job.hello(5);
  stranger.run_id = "another";
  EXPECT_EQ(receivers_of<Refused>(job.said(5, stranger)), std::vector{NodeId{5}});
}

TEST(RoundCore, ALargeJobsOutcomeStaysSmall) {
  Leader job(config_of(2, 2));
  job.run(2);
  job.said(0, WorkerFailed{kFirst, failure()});
  job.said(0, RoundStopped{kFirst, std::vector<WorkerFailure>(60, failure())});
  const auto out = job.said(1, RoundStopped{kFirst, {}});
  EXPECT_THAT(outcome_in(out).consequences, SizeIs(32));
  EXPECT_EQ(outcome_in(out).consequences_left_out, 28);
}

TEST(RoundCore, ARestartThatIsAskedForCostsNothingAndIsSaidToBeOne) {
  OneNode job;  // without any budget
  job.running();
  EXPECT_TRUE(only<RoundStop>(job.said(0, RestartAsked{kFirst, "Ann"})));
  EXPECT_THAT(job.said(0, RestartAsked{kFirst}), IsEmpty()) << "two people, one restart";
  const auto stopped = RoundStopped{kFirst, {failure(0, ExitStatus::killed(SIGTERM))}};
  EXPECT_TRUE(only<OpenStore>(job.said(0, stopped)));
  const auto out = job.said(0, StoreOpened{kSecond, 4000});
  ASSERT_TRUE(only<RoundStart>(out));
  EXPECT_TRUE(only<RoundStart>(out)->after_request);
  EXPECT_EQ(only<RoundStart>(out)->asked_by, "Ann");
  EXPECT_FALSE(only<RoundStart>(out)->after_failure);
  EXPECT_EQ(only<RoundStart>(out)->restarts, 0);
  EXPECT_THAT(job.said(0, RestartAsked{kFirst}), IsEmpty()) << "that round is over";
}

TEST(RoundCore, AFailureWhileARestartThatWasAskedForIsUnderWayIsItsConsequence) {
  OneNode job;
  job.running();
  job.said(0, RestartAsked{kFirst});
  job.said(0, WorkerFailed{kFirst, failure()});
  EXPECT_TRUE(only<OpenStore>(job.said(0, RoundStopped{kFirst, {}})));
  EXPECT_EQ(job.core.restarts(), 0);
}

TEST(RoundCore, AFailureThatCameBeforeTheRestartWasAskedForIsCharged) {
  OneNode job(1);
  job.running();
  job.said(0, WorkerFailed{kFirst, failure()});
  EXPECT_THAT(job.said(0, RestartAsked{kFirst}), IsEmpty());
  EXPECT_TRUE(only<OpenStore>(job.said(0, RoundStopped{kFirst, {}})));
  EXPECT_EQ(job.core.restarts(), 1);
}

TEST(RoundCore, AStopThatIsAskedForEndsTheJobForAllOnceTheyHaveStopped) {
  Leader job(config_of(2, 2, 3));
  job.run(2);
  EXPECT_THAT(receivers_of<RoundStop>(job.said(1, StopAsked{SIGTERM})), SizeIs(2));
  EXPECT_THAT(job.said(0, StopAsked{SIGINT}), IsEmpty()) << "the first one counts";
  EXPECT_THAT(job.said(0, RoundStopped{kFirst, {failure()}}), IsEmpty());
  const auto out = job.said(1, RoundStopped{kFirst, {}});
  EXPECT_THAT(receivers_of<JobEnd>(out), SizeIs(2));
  EXPECT_EQ(outcome_in(out).kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(outcome_in(out).stop_signal, SIGTERM);
  EXPECT_EQ(outcome_in(out).exit_code, 128 + SIGTERM);
}

TEST(RoundCore, TheOutcomeSaysWhatUsersHaveAskedForAndWhichRanksHadLeft) {
  Leader job(config_of(2, 2, 3));
  job.run(2);
  job.said(1, StopAsked{SIGTERM, "Ann"});
  job.said(0, RoundStopped{kFirst, {}, {1}});
  const JobOutcome stopped = outcome_in(job.said(1, RoundStopped{kFirst, {}, {3, 2}}));
  EXPECT_EQ(stopped.sentence, "Ann");
  EXPECT_THAT(stopped.done, ElementsAre(1, 2, 3));

  OneNode other;
  other.running();
  other.said(0, RestartAsked{kFirst, "Ben"});
  other.said(0, RoundStopped{kFirst, {}});
  other.said(0, StoreOpened{kSecond, 4000});
  WorkerFailure replaced = failure();
  replaced.asked_by = "Ann";
  other.said(0, WorkerFailed{kSecond, replaced});
  const JobOutcome failed = outcome_in(other.said(0, RoundStopped{kSecond, {}}));
  EXPECT_THAT(failed.requests, ElementsAre("Ben", "Ann"));
  EXPECT_EQ(failed.sentence, "");
}

TEST(RoundCore, ALeaderThatIsNoNodeMayAskForTheStop) {
  RoundConfig config = config_of(2, 2);
  config.own_node.reset();
  Leader job(config);
  EXPECT_THAT(job.said(0, RestartAsked{kFirst}), IsEmpty());
  const auto out = job.said(0, StopAsked{SIGINT});
  EXPECT_THAT(out, IsEmpty()) << "nobody has come yet";
  ASSERT_TRUE(job.core.was_everyone_told());
  EXPECT_EQ(job.core.outcome()->exit_code, 128 + SIGINT);
}

TEST(RoundCore, ANodeThatIsNotThereMayNotAskForTheStop) {
  Leader job(config_of(2, 2));
  EXPECT_THAT(job.said(0, StopAsked{SIGTERM}), IsEmpty());
  EXPECT_FALSE(job.core.has_ended());
}

TEST(RoundCore, AStopWhileARoundIsStoppedEndsTheJobInsteadOfTheNextRound) {
  OneNode job(3);
  job.running();
  job.said(0, WorkerFailed{kFirst, failure()});
  EXPECT_THAT(job.said(0, StopAsked{SIGTERM}), IsEmpty());
  EXPECT_EQ(outcome_in(job.said(0, RoundStopped{kFirst, {}})).kind, JobOutcome::Kind::kStopped);
}

TEST(RoundCore, AFailureThatEndsTheJobStaysItsCauseThoughAStopWasAskedFor) {
  OneNode job;  // without any budget
  job.running();
  job.said(0, WorkerFailed{kFirst, failure()});
  job.said(0, StopAsked{SIGTERM});
  EXPECT_EQ(outcome_in(job.said(0, RoundStopped{kFirst, {}})).kind, JobOutcome::Kind::kFailed);
}

TEST(RoundCore, ShowsWhoIsThereAndWhatItWaitsFor) {
  using Place = LeaderView::Place;
  using State = LeaderView::State;
  const auto places = [](const LeaderView& view) {
    std::vector<Place> found;
    for (const auto& member : view.members) found.push_back(member.place);
    return found;
  };
  RoundConfig config = config_of(2, 2, 3);
  config.join_timeout = 60s;
  Leader job(config);
  job.join(0);
  LeaderView view = job.core.view(job.now + 10s);
  EXPECT_EQ(view.state, State::kGathering);
  EXPECT_EQ(view.left, std::chrono::nanoseconds(50s));
  EXPECT_EQ(view.ready, 1);
  EXPECT_THAT(places(view), ElementsAre(Place::kWaiting));

  job.run(2);
  job.join(2);
  view = job.core.view(job.now);
  EXPECT_EQ(view.state, State::kRunning);
  EXPECT_EQ(view.left, std::nullopt);
  EXPECT_EQ(view.max_restarts, 3);
  EXPECT_THAT(places(view), ElementsAre(Place::kInRound, Place::kInRound, Place::kSpare));
  EXPECT_EQ(view.members[1].host, "node1");
  EXPECT_EQ(view.members[1].node_rank, 1);
  EXPECT_EQ(view.members[2].node_rank, std::nullopt);

  job.link(1, NodeDisconnected{});
  EXPECT_EQ(job.core.view(job.now).members[1].place, Place::kDisconnected);
  job.wait(300ms);  // it is lost
  view = job.core.view(job.now);
  EXPECT_EQ(view.state, State::kStopping);
  EXPECT_THAT(places(view), ElementsAre(Place::kInRound, Place::kWaiting)) << "its place is free";
  job.said(0, NodeLeaving{SIGTERM});
  job.said(0, RoundStopped{kFirst, {}});
  EXPECT_EQ(job.core.view(job.now).state, State::kEnded);
}

TEST(RoundCore, TenThousandNodesCostNoMoreThanTheyMust) {
  constexpr int kNodes = 10'000;
  Leader job(config_of(1, kNodes));
  std::size_t messages = 0;
  for (int id = 0; id < kNodes; ++id) messages += job.join(id).size();
  messages += job.said(0, StoreOpened{kFirst, 1}).size();
  EXPECT_LE(messages, 2U * kNodes + 1);
  for (int id = 1; id < kNodes; ++id) job.link(id, NodeDisconnected{});
  EXPECT_THAT(receivers_of<RoundStop>(job.wait(300ms)), SizeIs(kNodes - 1));
  EXPECT_THAT(receivers_of<OpenStore>(job.said(0, RoundStopped{kFirst, {}})), SizeIs(1));
}

// ---- replacement in place

WorkerReplaceable replaceable(int rank, std::int64_t committed = 5, std::uint32_t generation = 0) {
  return {kFirst, failure(rank, ExitStatus::killed(SIGKILL)), committed, generation};
}

// Nodes whose workers can recover; each has one, of its own rank.
class Recovering : public Leader {
 public:
  explicit Recovering(int nodes, int max_restarts = 3)
      : Recovering(nodes, config_of(nodes, nodes, max_restarts)) {}
  Recovering(int nodes, RoundConfig config) : Leader(std::move(config)) {
    run(nodes);
    for (int id = 0; id < nodes; ++id) EXPECT_THAT(said(id, WorkersRecover{kFirst}), IsEmpty());
  }
  bool is_replaced(const std::vector<ToNode>& out) const {
    return core.is_running() && receivers_of<ReplaceWorker>(out).size() == core.group_size() &&
           out.size() == core.group_size();
  }
  // The outcome of a job that ends with this round, or its next RoundStart.
  std::vector<ToNode> stop(int nodes) {
    std::vector<ToNode> out;
    for (int id = 0; id < nodes; ++id) out = said(id, RoundStopped{kFirst, {}});
    return core.has_ended() ? out : said(0, StoreOpened{kSecond, 4001});
  }
};

const RoundStart& start_in(const std::vector<ToNode>& out) {
  for (const ToNode& each : out) {
    if (const auto* start = std::get_if<RoundStart>(&each.message)) return *start;
  }
  static const RoundStart none{};
  ADD_FAILURE() << "no round begins";
  return none;
}

TEST(RoundCore, ReplacesAWorkerOnAllNodesAndChargesItAtOnce) {
  Recovering job(2);
  WorkerReplaceable failed = replaceable(1);
  failed.failure.stderr_tail = {"the report of its node has them"};
  const auto out = job.said(1, failed);
  failed.failure.stderr_tail.clear();
  const ReplaceWorker order{kFirst, 1, 1, failed.failure, 1, 3};
  EXPECT_THAT(out, ElementsAre(ToNode{kOwn, order}, ToNode{NodeId{1}, order}));
  EXPECT_TRUE(job.core.is_running());
  EXPECT_EQ(job.core.restarts(), 1);
  EXPECT_THAT(job.said(0, Regrouped{kFirst, 1}), IsEmpty());
  EXPECT_TRUE(job.core.deadline());
  EXPECT_THAT(job.said(1, Regrouped{kFirst, 1}), IsEmpty());
  EXPECT_FALSE(job.core.deadline()) << "it is over";
  job.said(0, WorkersDone{kFirst});
  const JobOutcome outcome = outcome_in(job.said(1, WorkersDone{kFirst}));
  EXPECT_EQ(outcome.restarts, 1);
  EXPECT_EQ(outcome.in_place, 1);
}

TEST(RoundCore, ReplacesOnlyWhereTheLadderAllowsIt) {
  const std::pair<const char*, std::function<std::vector<ToNode>()>> cases[] = {
      {"a node has not said that its workers can recover",
       [] {
         Leader job(config_of(2, 2, 3));
         job.run(2);
         job.said(0, WorkersRecover{kFirst});
         return job.said(1, replaceable(1));
       }},
      {"its first step was not committed", [] { return Recovering(2).said(1, replaceable(1, 0)); }},
      {"a worker has ended with 0",
       [] {
         Recovering job(2);
         job.said(0, SomeWorkersDone{kFirst});
         return job.said(1, replaceable(1));
       }},
      {"a node may be lost",
       [] {
         Recovering job(2);
         job.link(0, NodeDisconnected{});
         return job.said(1, replaceable(1));
       }},
      {"the budget is spent", [] { return Recovering(2, 0).said(1, replaceable(1)); }},
      {"min_uptime",
       [] {
         RoundConfig config = config_of(2, 2, 3);
         config.restarts.min_uptime = 1s;
         return Recovering(2, config).said(1, replaceable(1));
       }},
      {"its exit code is final",
       [] {
         RoundConfig config = config_of(2, 2, 3);
         config.restarts.final_exit_codes = {128 + SIGKILL};
         return Recovering(2, config).said(1, replaceable(1));
       }},
      {"it would fail again in the same way", [] {
         WorkerReplaceable failed = replaceable(1);
         failed.failure.is_worth_a_retry = false;
         return Recovering(2).said(1, failed);
       }}};
  for (const auto& [name, happen] : cases) {
    const auto out = happen();
    EXPECT_THAT(receivers_of<GroupBroken>(out), ElementsAre(kOwn, NodeId{1}))
        << name << ": its own node has told nobody";
    EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn, NodeId{1})) << name;
    EXPECT_THAT(receivers_of<ReplaceWorker>(out), IsEmpty()) << name;
  }
}

TEST(RoundCore, AWorkerThatIsNotReplacedCostsWhatAFailureCosts) {
  Leader job(config_of(2, 2, 3));
  job.run(2);
  job.said(1, replaceable(1));
  job.said(0, RoundStopped{kFirst, {}});
  job.said(1, RoundStopped{kFirst, {}});
  const auto out = job.said(0, StoreOpened{kSecond, 4001});
  EXPECT_EQ(start_in(out).restarts, 1);
  EXPECT_EQ(start_in(out).after_failure->rank, 1);
}

TEST(RoundCore, ASecondDeathBeginsTheNextGenerationAndTheFirstOneCountsNoMore) {
  Recovering job(3);
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1))));
  job.said(0, Regrouped{kFirst, 1});
  const auto out = job.said(2, replaceable(2, 4));
  ASSERT_TRUE(job.is_replaced(out));
  EXPECT_EQ(std::get<ReplaceWorker>(out[0].message).generation, 2U);
  EXPECT_EQ(job.core.restarts(), 2);
  for (int id = 0; id < 3; ++id) job.said(id, Regrouped{kFirst, 1});
  EXPECT_TRUE(job.core.deadline());
  for (int id = 0; id < 3; ++id) job.said(id, Regrouped{kFirst, 2});
  EXPECT_FALSE(job.core.deadline());
}

TEST(RoundCore, WhenTheLastRankWithTheStateDiesAllAreRestarted) {
  Recovering job(3, /*max_restarts=*/9);
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1))));
  EXPECT_TRUE(job.is_replaced(job.said(0, replaceable(0))));
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1)))) << "its newcomer, once more";
  const auto out = job.said(2, replaceable(2));
  EXPECT_THAT(receivers_of<GroupBroken>(out), SizeIs(3));
  EXPECT_THAT(receivers_of<RoundStop>(out), SizeIs(3));
  EXPECT_EQ(start_in(job.stop(3)).restarts, 3);

  Recovering alone(1);
  EXPECT_THAT(receivers_of<RoundStop>(alone.said(0, replaceable(0))), SizeIs(1));
}

TEST(RoundCore, WhoDiesInTheLastGenerationLeavesTheStateToItsNewcomers) {
  Recovering job(2, /*max_restarts=*/9);
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1))));
  job.said(0, Regrouped{kFirst, 1});
  EXPECT_TRUE(job.is_replaced(job.said(0, replaceable(0, 5, 1))))
      << "where it has come to with the newcomer";
  EXPECT_THAT(receivers_of<RoundStop>(job.said(1, replaceable(1, 5, 1))), SizeIs(2));
}

TEST(RoundCore, AReplacementThatTakesTooLongBecomesARestartThatIsPaid) {
  Recovering job(2);
  job.said(1, replaceable(1));
  job.said(0, Regrouped{kFirst, 1});
  EXPECT_EQ(*job.core.deadline(), job.now + 30s);
  const auto out = job.wait(30s);
  EXPECT_THAT(receivers_of<GroupBroken>(out), ElementsAre(kOwn, NodeId{1}));
  EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn, NodeId{1}));
  const RoundStart start = start_in(job.stop(2));
  EXPECT_EQ(start.restarts, 1);
  EXPECT_EQ(start.after_failure->rank, 1);
}

TEST(RoundCore, ALeaderThatWasPausedGivesTheReplacementMoreTime) {
  Recovering job(2);
  job.said(1, replaceable(1));
  EXPECT_THAT(job.wait(31s), IsEmpty());
  EXPECT_EQ(*job.core.deadline(), job.now + 10s);
  EXPECT_THAT(receivers_of<RoundStop>(job.wait(10s)), SizeIs(2));
}

TEST(RoundCore, AFailureWhileAWorkerIsReplacedIsAConsequenceAndCostsNoMore) {
  Recovering job(2, /*max_restarts=*/1);
  job.said(1, replaceable(1));
  const auto out = job.said(0, WorkerFailed{kFirst, failure(0, ExitStatus::exited(1))});
  EXPECT_THAT(receivers_of<GroupBroken>(out), ElementsAre(NodeId{1})) << "its own node knows";
  EXPECT_THAT(receivers_of<RoundStop>(out), SizeIs(2));
  const RoundStart start = start_in(job.stop(2));
  EXPECT_EQ(start.restarts, 1);
  EXPECT_EQ(start.after_failure->rank, 1);
}

TEST(RoundCore, ADeathThatTheBudgetDoesNotCoverEndsAReplacementWithTheRestartThatIsPaid) {
  Recovering job(2, /*max_restarts=*/1);
  job.said(1, replaceable(1));
  const auto out = job.said(0, replaceable(0));
  EXPECT_THAT(receivers_of<GroupBroken>(out), ElementsAre(kOwn, NodeId{1}));
  EXPECT_EQ(start_in(job.stop(2)).restarts, 1);
}

TEST(RoundCore, AWorkerThatEndsWithZeroInsteadOfRegroupingEndsTheReplacement) {
  Recovering job(2);
  job.said(1, replaceable(1));
  EXPECT_THAT(receivers_of<RoundStop>(job.said(0, SomeWorkersDone{kFirst})), SizeIs(2));
  EXPECT_EQ(start_in(job.stop(2)).restarts, 1);
}

TEST(RoundCore, AWorkerThatHasLeftItsLoopEndsTheReplacementThatWaitsForIt) {
  Recovering job(2);
  job.said(1, replaceable(1));
  job.said(1, Regrouped{kFirst, 1});
  EXPECT_THAT(job.said(1, CannotRegroup{kFirst, 1}), IsEmpty()) << "nobody waits for it";
  job.said(1, replaceable(1, 50, 1));
  EXPECT_THAT(job.said(0, CannotRegroup{kFirst, 1}), IsEmpty()) << "of the past";
  EXPECT_THAT(receivers_of<RoundStop>(job.said(0, CannotRegroup{kFirst, 2})), SizeIs(2));
  EXPECT_EQ(start_in(job.stop(2)).restarts, 2);
}

TEST(RoundCore, AWorkerThatEndsWithZeroAfterItHasRegroupedDoesNot) {
  Recovering job(2);
  job.said(1, replaceable(1));
  job.said(0, Regrouped{kFirst, 1});
  EXPECT_THAT(job.said(0, WorkersDone{kFirst}), IsEmpty());
  job.said(1, Regrouped{kFirst, 1});
  EXPECT_EQ(outcome_in(job.said(1, WorkersDone{kFirst})).kind, JobOutcome::Kind::kSucceeded);
}

TEST(RoundCore, AStepThatEndsItsRankTwiceEndsTheJobAndTheReportSaysSo) {
  Recovering job(2);
  job.said(1, replaceable(1, 12));
  job.said(0, Regrouped{kFirst, 1});
  job.said(1, Regrouped{kFirst, 1});
  const auto out = job.said(1, replaceable(1, 12, 1));
  EXPECT_THAT(receivers_of<GroupBroken>(out), SizeIs(2));
  EXPECT_THAT(receivers_of<RoundStop>(out), SizeIs(2));
  const JobOutcome outcome = outcome_in(job.stop(2));
  EXPECT_EQ(outcome.kind, JobOutcome::Kind::kFailed);
  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_EQ(outcome.sentence, "step 13 has ended rank 1 twice");
  EXPECT_EQ(outcome.restarts, 1);
}

// It has regrouped and begun the step, and another node has not said yet that it has.
TEST(RoundCore, APoisonStepMayComeBeforeTheLastNodeHasSaidThatItRegrouped) {
  Recovering job(2);
  job.said(1, replaceable(1, 12));
  job.said(1, replaceable(1, 12, 1));
  EXPECT_EQ(outcome_in(job.stop(2)).sentence, "step 13 has ended rank 1 twice");
}

// The newcomer ends in its first step, long before it has a standby of its own.
TEST(RoundCore, APoisonStepIsSeenWithoutAStandby) {
  Recovering job(2, /*max_restarts=*/9);
  job.said(1, replaceable(1, 12));
  for (int id = 0; id < 2; ++id) job.said(id, Regrouped{kFirst, 1});
  WorkerReplaceable failed = replaceable(1, 12, 1);
  failed.has_standby = false;
  EXPECT_THAT(receivers_of<RoundStop>(job.said(1, failed)), SizeIs(2));
  EXPECT_EQ(outcome_in(job.stop(2)).sentence, "step 13 has ended rank 1 twice");
}

TEST(RoundCore, WithoutAStandbyAllAreRestarted) {
  Recovering job(2, /*max_restarts=*/9);
  job.said(1, replaceable(1, 12));
  for (int id = 0; id < 2; ++id) job.said(id, Regrouped{kFirst, 1});
  WorkerReplaceable failed = replaceable(1, 14, 1);
  failed.has_standby = false;
  const auto out = job.said(1, failed);
  EXPECT_THAT(receivers_of<GroupBroken>(out), SizeIs(2));
  EXPECT_THAT(receivers_of<RoundStop>(out), SizeIs(2));
  EXPECT_THAT(receivers_of<ReplaceWorker>(out), IsEmpty());
}

TEST(RoundCore, WhatIsNoPoison) {
  Recovering job(3, /*max_restarts=*/9);
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1, 12))));
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1, 12, 0)))) << "it had not come back";
  EXPECT_TRUE(job.is_replaced(job.said(0, replaceable(0, 12, 0)))) << "another rank";
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1, 12, 2))))
      << "another one is replaced at the same time, whose fault it may be";
  for (int id = 0; id < 3; ++id) job.said(id, Regrouped{kFirst, 4});
  EXPECT_TRUE(job.is_replaced(job.said(1, replaceable(1, 13, 4)))) << "another step";
  EXPECT_EQ(job.core.restarts(), 5);
}

TEST(RoundCore, ALossWhileAWorkerIsReplacedEndsTheRoundAndCostsNoMore) {
  RoundConfig config = config_of(1, 2, 3);
  Recovering job(2, config);
  job.said(1, replaceable(1));
  const auto out = job.link(1, NodeSilent{});
  EXPECT_THAT(receivers_of<GroupBroken>(out), ElementsAre(kOwn));
  EXPECT_THAT(receivers_of<RoundStop>(out), ElementsAre(kOwn));
  job.said(0, RoundStopped{kFirst, {}});
  const RoundStart start = start_in(job.said(0, StoreOpened{kSecond, 4001}));
  EXPECT_EQ(start.restarts, 1);
  EXPECT_FALSE(start.after_failure);
}

TEST(RoundCore, ANewcomerEndsTheRoundWhileAWorkerIsReplaced) {
  Recovering job(2, config_of(2, 3, 3));
  job.said(1, replaceable(1));
  const auto out = job.join(2);
  EXPECT_THAT(receivers_of<RoundStop>(out), SizeIs(2));
}

TEST(RoundCore, GenerationsBeginAnewInEachRound) {
  Recovering job(2, /*max_restarts=*/5);
  job.said(0, replaceable(0));
  for (int id = 0; id < 2; ++id) job.said(id, Regrouped{kFirst, 1});
  job.said(0, RestartAsked{kFirst});
  job.stop(2);
  WorkerReplaceable failed = replaceable(0);
  failed.round = kSecond;
  EXPECT_THAT(receivers_of<ReplaceWorker>(job.said(0, failed)), IsEmpty())
      << "the workers of this round have not said that they can recover";
}

// ---- the table in the header: every event in every state

enum State { kGathering, kPausing, kOpening, kRunning, kStopping, kEnded, kStates };

// Two nodes of at most three, 0 is the leader's own and group rank 0; node 1 is the one that acts.
Leader in_state(State state) {
  RoundConfig config = config_of(2, 3, 5);
  config.restarts.pause_after_failure = {1s, 1s};
  Leader job(config);
  job.join(0);
  if (state == kGathering) return job;
  job.join(1);
  job.wait(30s);
  if (state == kOpening) return job;
  job.said(0, StoreOpened{kFirst, 1});
  if (state == kRunning) return job;
  if (state == kEnded) {
    job.said(0, NodeLeaving{SIGTERM});
  } else {
    job.said(0, WorkerFailed{kFirst, failure()});
  }
  if (state == kStopping) return job;
  job.said(0, RoundStopped{kFirst, {}});
  job.said(1, RoundStopped{kFirst, {}});
  return job;
}

std::string names_of(const std::vector<ToNode>& out) {
  constexpr const char* kNames[] = {"Refused",   "Warning",     "WaitForNodes", "WaitAsSpare",
                                    "OpenStore", "RoundStart",  "RoundStop",    "DeclaredLost",
                                    "JobEnd",    "GroupBroken", "ReplaceWorker"};
  static_assert(std::size(kNames) == std::variant_size_v<ToAgent>);
  std::string text;
  for (const ToNode& each : out) {
    text += (text.empty() ? "" : " ") + std::string(kNames[each.message.index()]) + ">" +
            std::to_string(number(each.to));
  }
  return text;
}

struct Row {
  const char* event;
  int from;
  std::function<std::vector<ToNode>(Leader&, int from)> happen;
  const char* answers[kStates];  // Gathering, Pausing, Opening, Running, Stopping, Ended
};

template <typename Message>
auto says(Message message) {
  return [message](Leader& job, int from) {
    Message copy = message;
    if constexpr (requires { copy.round; }) copy.round = job.core.round();
    return job.said(from, copy);
  };
}
template <typename Event>
auto link(Event event) {
  return [event](Leader& job, int from) { return job.link(from, event); };
}

constexpr const char* kBoth = "RoundStop>0 RoundStop>1";
constexpr const char* kEndBoth = "JobEnd>0 JobEnd>1";

const Row kTable[] = {
    {"NodeHello",
     2,
     [](Leader& job, int from) { return job.join(from); },
     {"WaitForNodes>2", "", "", kBoth, "", "JobEnd>2"}},
    {"NodeHello of a node of the past",
     2,
     [](Leader& job, int from) {
       return job.join_after(from, {Round{6}, 2, 0});
     },
     {"OpenStore>0", "", "", kBoth, "", "JobEnd>2"}},
    {"NodeHello again",
     0,
     [](Leader& job, int from) { return job.join(from); },
     {"", "", "", "", "", ""}},
    {"StoreOpened by the host",
     0,
     says(StoreOpened{}),
     {"", "", "RoundStart>0 RoundStart>1", "", "", ""}},
    {"StoreOpened by another", 1, says(StoreOpened{}), {"", "", "", "", "", ""}},
    {"StoreNotOpened by the host", 0, says(StoreNotOpened{}), {"", "", kEndBoth, "", "", ""}},
    {"StoreNotOpened by another", 1, says(StoreNotOpened{}), {"", "", "", "", "", ""}},
    {"WorkerFailed",
     1,
     says(WorkerFailed{{}, failure()}),
     {"", "", "", "GroupBroken>0 RoundStop>0 RoundStop>1", "", ""}},
    {"WorkerReplaceable",
     1,
     says(WorkerReplaceable{{}, failure(), 5, 0}),
     {"", "", "", "GroupBroken>0 GroupBroken>1 RoundStop>0 RoundStop>1", "", ""}},
    {"WorkersRecover", 1, says(WorkersRecover{}), {"", "", "", "", "", ""}},
    {"Regrouped", 1, says(Regrouped{{}, 1}), {"", "", "", "", "", ""}},
    {"CannotRegroup", 1, says(CannotRegroup{{}, 1}), {"", "", "", "", "", ""}},
    {"SomeWorkersDone", 1, says(SomeWorkersDone{}), {"", "", "", "", "", ""}},
    {"WorkersDone", 1, says(WorkersDone{}), {"", "", "", "", "", ""}},
    {"RoundStopped", 1, says(RoundStopped{}), {"", "", "", "", "", ""}},
    {"NodeLeaving",
     1,
     says(NodeLeaving{SIGTERM}),
     {"", "", "WaitForNodes>0", "RoundStop>0", "", ""}},
    {"NodeLeaving of the own node",
     0,
     says(NodeLeaving{SIGTERM}),
     {"JobEnd>0", kEndBoth, kEndBoth, kBoth, "", ""}},
    {"NodeStuck",
     1,
     says(NodeStuck{}),
     {"", "JobEnd>1", "JobEnd>1 WaitForNodes>0", "JobEnd>1 GroupBroken>0 RoundStop>0", "JobEnd>1",
      ""}},
    {"NodeStuck of the own node",
     0,
     says(NodeStuck{}),
     {"JobEnd>0", kEndBoth, kEndBoth, kEndBoth, kEndBoth, ""}},
    {"Goodbye", 1, says(Goodbye{}), {"", "", "", "", "", ""}},
    {"RestartAsked", 1, says(RestartAsked{}), {"", "", "", kBoth, "", ""}},
    {"RestartAsked by an unknown node", 9, says(RestartAsked{}), {"", "", "", "", "", ""}},
    {"StopAsked", 0, says(StopAsked{SIGTERM}), {"JobEnd>0", kEndBoth, kEndBoth, kBoth, "", ""}},
    {"NodeDisconnected", 1, link(NodeDisconnected{}), {"", "", "", "", "", ""}},
    {"NodeResumed", 1, link(NodeResumed{}), {"", "", "", "", "", ""}},
    {"NodeTurnedAway", 0, link(NodeTurnedAway{"", "10.0.0.9", "why"}), {"", "", "", "", "", ""}},
    {"NodeSilent",
     1,
     link(NodeSilent{}),
     {"", "DeclaredLost>1", "DeclaredLost>1 WaitForNodes>0",
      "GroupBroken>0 RoundStop>0 DeclaredLost>1", "DeclaredLost>1", "DeclaredLost>1"}},
    {"the grace is over",
     1,
     [](Leader& job, int from) {
       job.link(from, NodeDisconnected{});
       return job.wait(300ms);
     },
     {"", "", "WaitForNodes>0", "GroupBroken>0 RoundStop>0", "", ""}},
    {"tick", 0, [](Leader& job, int) { return job.wait(2s); }, {"", "OpenStore>0", "", "", "", ""}},
    {"an unknown node's word", 9, says(WorkerFailed{{}, failure()}), {"", "", "", "", "", ""}},
    {"another round's failure",
     1,
     [](Leader& job, int from) {
       return job.said(from, WorkerFailed{Round{99}, failure()});
     },
     {"", "", "", "", "", ""}},
    {"another round's end",
     1,
     [](Leader& job, int from) { return job.said(from, WorkersDone{Round{99}}); },
     {"", "", "", "", "", ""}},
};

TEST(RoundCore, AnswersEveryEventInEveryStateAsItsTableSays) {
  for (const Row& row : kTable) {
    for (int state = 0; state < kStates; ++state) {
      Leader job = in_state(static_cast<State>(state));
      EXPECT_EQ(names_of(row.happen(job, row.from)), row.answers[state])
          << row.event << " in state " << state;
    }
  }
}

// While a worker is replaced: what differs from Running.
TEST(RoundCore, AnswersEveryEventWhileAWorkerIsReplacedAsItsTableSays) {
  constexpr const char* kBroken = "GroupBroken>0 GroupBroken>1 RoundStop>0 RoundStop>1";
  const std::map<std::string_view, const char*> answers = {
      {"WorkerReplaceable", kBroken},  // the other rank's: none has the state
      {"CannotRegroup", kBroken},
      {"SomeWorkersDone", kBroken},
      {"WorkersDone", kBroken}};
  for (const Row& row : kTable) {
    Leader job = in_state(kRunning);
    for (int id = 0; id < 2; ++id) job.said(id, WorkersRecover{kFirst});
    ASSERT_EQ(names_of(job.said(1, replaceable(1))), "ReplaceWorker>0 ReplaceWorker>1");
    const auto its = answers.find(row.event);
    EXPECT_EQ(names_of(row.happen(job, row.from)),
              its == answers.end() ? row.answers[kRunning] : its->second)
        << row.event;
  }
}

}  // namespace
}  // namespace ddprun::rdzv
