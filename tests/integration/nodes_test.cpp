// Jobs on several nodes, here all on this machine: which nodes form the group, in which order, and
// what happens when workers fail and nodes come and go. Faults of the network are in
// network_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/support/cluster.h"

namespace ddprun::test {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

void expect_all_to_end(Cluster& cluster, Ended ended) {
  EXPECT_THAT(cluster.wait(), Each(Pair(_, ended))) << cluster.told();
  EXPECT_EQ(cluster.leader().wait(), ended) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

void expect_good_end(Cluster& cluster) {
  cluster.let_finish();
  expect_all_to_end(cluster, exited(0));
}

class Nodes : public ::testing::TestWithParam<Meeting> {};
class ElasticNodes : public Nodes {};       // static takes no fewer than all
class LeaderThatIsANode : public Nodes {};  // not: ddpctl leader

constexpr auto kNameOf = [](const auto& meeting) {
  return ::testing::PrintToString(meeting.param);
};
INSTANTIATE_TEST_SUITE_P(By, Nodes,
                         ::testing::Values(Meeting::kStatic, Meeting::kC10d, Meeting::kLeader),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(By, LeaderThatIsANode, ::testing::Values(Meeting::kStatic, Meeting::kC10d),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(By, ElasticNodes, ::testing::Values(Meeting::kC10d, Meeting::kLeader),
                         kNameOf);

// ---- the group

TEST_P(Nodes, FormOneWorldWithoutGaps) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "2", .nproc = 2});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  std::set<std::string> masters;
  for (int rank = 0; rank < 4; ++rank) {
    auto environment = cluster.environment(0, rank);
    masters.insert(environment["MASTER_ADDR"] + " " + environment["MASTER_PORT"]);
    EXPECT_EQ(environment["RANK"], std::to_string(rank));
    EXPECT_EQ(environment["WORLD_SIZE"], "4");
    EXPECT_EQ(environment["LOCAL_RANK"], std::to_string(rank % 2));
    EXPECT_EQ(environment["LOCAL_WORLD_SIZE"], "2");
    EXPECT_EQ(environment["GROUP_RANK"], std::to_string(rank / 2));
    EXPECT_EQ(environment["GROUP_WORLD_SIZE"], "2");
    EXPECT_EQ(environment["ROLE_RANK"], std::to_string(rank));
    EXPECT_EQ(environment["ROLE_WORLD_SIZE"], "4");
    EXPECT_EQ(environment["TORCHELASTIC_RESTART_COUNT"], "0");
  }
  EXPECT_EQ(masters.size(), 1U) << ::testing::PrintToString(masters);
  expect_good_end(cluster);
}

TEST_P(Nodes, MeetOverIpv6) {
  Cluster cluster({.meeting = GetParam(), .is_ipv6 = true});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_EQ(cluster.environment(0, 0)["MASTER_ADDR"], "::1");
  expect_good_end(cluster);
}

TEST_P(Nodes, BringUnequalNumbersOfWorkersAndSeveralRoles) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "3"});
  cluster.start(0, {"--nproc-per-node=1", "--role=trainer", "--node-rank=0"});
  cluster.start(1, {"--nproc-per-node=3", "--role=reader", "--node-rank=1"});
  cluster.start(2, {"--nproc-per-node=2", "--role=trainer", "--node-rank=2"});
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  const auto places = [&](const std::string& name) {
    std::vector<std::string> values(6);
    for (int rank = 0; rank < 6; ++rank) values.at(rank) = cluster.environment(0, rank)[name];
    return values;
  };
  EXPECT_THAT(places("LOCAL_WORLD_SIZE"), ElementsAre("1", "3", "3", "3", "2", "2"));
  EXPECT_THAT(places("GROUP_RANK"), ElementsAre("0", "1", "1", "1", "2", "2"));
  EXPECT_THAT(places("ROLE_NAME"),
              ElementsAre("trainer", "reader", "reader", "reader", "trainer", "trainer"));
  EXPECT_THAT(places("ROLE_RANK"), ElementsAre("0", "0", "1", "2", "1", "2"));
  EXPECT_THAT(places("ROLE_WORLD_SIZE"), ElementsAre("3", "3", "3", "3", "3", "3"));
  expect_good_end(cluster);
}

TEST_P(ElasticNodes, HaveTheRanksTheyAskFor) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "3"});
  cluster.start(0, {"--node-rank=2"});
  cluster.start(1, {"--node-rank=0"});
  cluster.start(2, {"--node-rank=1"});
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(0), ElementsAre(Pair(0, 2), Pair(1, 0), Pair(2, 1)));
  expect_good_end(cluster);
}

TEST_P(Nodes, EndTogetherWhenTheLastWorkerHasEnded) {
  Cluster cluster({.meeting = GetParam(),
                   .nproc = 2,
                   .actions = {"on-rank", "3", "until", "{folder}/finish", "exit", "0"}});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  // Three have ended, and nobody leaves the one that still works.
  EXPECT_TRUE(eventually([&] { return cluster[0].workers().empty(); }));
  EXPECT_TRUE(eventually([&] { return cluster[1].workers().size() == 1; }));
  EXPECT_EQ(cluster[0].wait(milliseconds(0)), Ended{});
  expect_good_end(cluster);
}

// ---- workers that fail

TEST_P(Nodes, StartAgainTogetherWhereverAWorkerIsKilledAndCountItOnce) {
  Cluster cluster({.meeting = GetParam(), .nproc = 2, .options = {"--max-restarts=2"}});
  cluster.start_all(2);
  int round = cluster.next_round(4);
  ASSERT_EQ(round, 0) << cluster.told();
  for (const int victim : {0, 3}) {
    const auto before = cluster.workers(round);
    kill(before.at(victim).pid, SIGKILL);
    round = cluster.next_round(4);
    ASSERT_EQ(cluster.environment(round, 0)["TORCHELASTIC_RESTART_COUNT"], std::to_string(round))
        << cluster.told();
    EXPECT_EQ(cluster.environment(round, 3)["TORCHELASTIC_MAX_RESTARTS"], "2");
    for (const auto& [rank, stamp] : before) {
      EXPECT_EQ(process(stamp.pid), std::nullopt) << "rank " << rank << " of the old round";
    }
  }
  EXPECT_EQ(round, 2);
  kill(cluster.workers(round).at(3).pid, SIGKILL);
  expect_all_to_end(cluster, exited(128 + SIGKILL));
  for (const int node : {0, 1}) EXPECT_THAT(cluster[node].err(), HasSubstr("rank 3"));
}

TEST_P(Nodes, EndAlikeWithTheFirstFailureWhenNoRestartIsLeft) {
  Cluster cluster({.meeting = GetParam(),
                   .nproc = 2,
                   .actions = {"on-rank", "2", "complain", "the disk is full",  //
                               "on-rank", "2", "exit", "7", "wait"}});
  cluster.start_all(2);
  expect_all_to_end(cluster, exited(7));
  for (const int node : {0, 1}) {
    EXPECT_THAT(cluster[node].err(), AllOf(HasSubstr("rank 2"), HasSubstr("the disk is full")));
  }
  EXPECT_EQ(cluster.last_round(), 0);
}

TEST_P(Nodes, StartFinishedWorkersAgainTooWhenAnotherFails) {
  Cluster cluster({.meeting = GetParam(),
                   .options = {"--max-restarts=1"},
                   .actions = {"on-rank", "0", "exit", "0",                //
                               "on-round", "0", "until", "{folder}/fail",  //
                               "on-round", "0", "exit", "1"}});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  ASSERT_TRUE(eventually([&] { return cluster[0].workers().empty(); }));
  write_file(cluster.folder() / "fail", "");
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  expect_good_end(cluster);
}

// ---- nodes that go

TEST_P(ElasticNodes, GoOnWithoutOneThatIsKilledAndItCostsNoRestart) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "2:3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster[2].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(4), 1) << cluster.told();
  EXPECT_EQ(cluster[2].wait(), killed_by(SIGKILL));
  EXPECT_THAT(cluster[2].left_over(), IsEmpty());
  cluster.forget(2);
  expect_good_end(cluster);
}

// Its peers notice before anybody declares it lost: as Gloo's do, they throw.
TEST_P(ElasticNodes, TakeFailuresThatALossCausedForWhatTheyAre) {
  Cluster cluster({.meeting = GetParam(),
                   .nnodes = "2:3",
                   .actions = {"on-round", "0", "until", "{folder}/lost", "on-round", "0", "exit",
                               "1", "until", "{folder}/finish", "exit", "0"}});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  cluster[2].signal(SIGKILL);
  write_file(cluster.folder() / "lost", "");
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.forget(2);
  expect_good_end(cluster);
}

class NodesThatGo : public ::testing::TestWithParam<std::tuple<Meeting, int>> {};
INSTANTIATE_TEST_SUITE_P(By, NodesThatGo,
                         ::testing::Combine(::testing::Values(Meeting::kStatic, Meeting::kC10d,
                                                              Meeting::kLeader),
                                            ::testing::Values(SIGTERM, SIGKILL)),
                         [](const auto& which) {
                           return ::testing::PrintToString(std::get<0>(which.param)) +
                                  (std::get<1>(which.param) == SIGTERM ? "Told" : "Killed");
                         });

TEST_P(NodesThatGo, AreAwaitedAndComeBack) {
  const auto [meeting, signal] = GetParam();
  Cluster cluster({.meeting = meeting, .nproc = 2});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  cluster[1].signal(signal);
  EXPECT_EQ(cluster[1].wait(), signal == SIGTERM ? exited(143) : killed_by(SIGKILL));
  EXPECT_THAT(cluster[1].left_over(), IsEmpty());
  EXPECT_TRUE(eventually([&] { return cluster[0].workers().empty(); })) << cluster.told();
  cluster.start(1);
  ASSERT_GE(cluster.next_round(4), 1) << cluster.told();
  expect_good_end(cluster);
}

// Its process does not run any more, and its connection is not closed yet: so it is too where the machine or the network
// takes its time.
TEST(StaticNode, TakesItsRankBackBeforeItsDeathIsKnown) {
  Cluster cluster({.meeting = Meeting::kStatic});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster[1].signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return process(cluster[1].pid())->state == 'T'; }));
  Job again(cluster.command(1));
  ASSERT_TRUE(again.reaches([&] {
    return again.err().find("waiting for the end of that one") != std::string::npos;
  })) << again.err();
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[1].wait(), killed_by(SIGKILL));
  EXPECT_GE(cluster.next_round(2), 1) << cluster.told() << again.err();
  cluster.forget(1);
  expect_good_end(cluster);
  EXPECT_EQ(again.wait(), exited(0)) << again.err();
}

TEST_P(ElasticNodes, GoOnWithoutOneThatIsToldToStop) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "1:2", .nproc = 2});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  cluster[1].signal(SIGTERM);
  EXPECT_EQ(cluster[1].wait(), exited(143)) << cluster.told();
  EXPECT_THAT(cluster[1].left_over(), IsEmpty());
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.forget(1);
  expect_good_end(cluster);
}

TEST_P(Nodes, EndWithTheirOwnCodeWhenTooFewAreLeft) {
  Cluster cluster({.meeting = GetParam(), .conf = "timeout=3,join_timeout=3"});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[0].wait(), exited(kBelowMinimum)) << cluster.told();
  EXPECT_THAT(cluster[0].err(), HasSubstr("1 of 2 nodes are left"));
  cluster.forget(1);
  expect_all_to_end(cluster, exited(kBelowMinimum));
}

TEST_P(Nodes, EndWithTheirOwnCodeWhenTheOthersDoNotCome) {
  Cluster cluster({.meeting = GetParam(), .conf = "timeout=1,join_timeout=1"});
  cluster.start(0);
  expect_all_to_end(cluster, exited(kRendezvousTimeout));
  EXPECT_THAT(cluster[0].err(), AllOf(HasSubstr("1 of 2 nodes came"), HasSubstr("timeout=")));
}

TEST_P(Nodes, StopAndSaySoWhenTheirLeaderIsKilled) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster.leader().signal(SIGKILL);
  const auto ended = cluster.wait(seconds(10));
  for (const int node : {1, 2}) {
    EXPECT_EQ(ended.at(node), exited(kLeaderLost)) << cluster.told();
    EXPECT_THAT(cluster[node].err(), HasSubstr("leader"));
  }
  EXPECT_EQ(ended.at(0), GetParam() == Meeting::kLeader ? exited(kLeaderLost) : killed_by(SIGKILL));
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

TEST_P(LeaderThatIsANode, EndsAllWhenItIsToldToStop) {
  Cluster cluster({.meeting = GetParam(), .nproc = 2});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  cluster[0].signal(SIGTERM);
  expect_all_to_end(cluster, exited(143));
}

// ---- nodes that come

TEST_P(ElasticNodes, DoNotAwaitTheLastCallWhenAllAreThere) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "1:2", .conf = "last_call_timeout=600"});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST_P(ElasticNodes, AreAllInWhenTheyComeBeforeTheLastCallIsOver) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "1:3", .conf = "last_call_timeout=3"});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST_P(ElasticNodes, JoinARunningJobWhereThereIsRoomAndTheOthersKeepTheirRanks) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "1:3"});
  cluster.start(0);
  ASSERT_EQ(cluster.next_round(1), 0) << cluster.told();
  for (const int node : {1, 2}) {
    cluster.start(node);
    const int round = cluster.next_round(node + 1);
    ASSERT_EQ(round, node) << cluster.told();
    EXPECT_EQ(cluster.first_ranks(round).at(0), 0);
    EXPECT_EQ(cluster.first_ranks(round).at(node), node);
  }
  expect_good_end(cluster);
}

TEST_P(ElasticNodes, WaitAsSparesWhereThereIsNoRoomAndReplaceTheLost) {
  Cluster cluster({.meeting = GetParam(), .nnodes = "2"});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  Job& spare = cluster.start(2);
  ASSERT_TRUE(spare.reaches([&] {
    return spare.err().find("this node waits") != std::string::npos;
  })) << cluster.told();
  EXPECT_EQ(cluster.last_round(), 0);
  cluster[1].signal(SIGKILL);
  const int round = cluster.next_round(2);
  ASSERT_EQ(round, 1) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(round), ElementsAre(Pair(0, 0), Pair(2, 1)));
  cluster.forget(1);
  expect_good_end(cluster);
}

TEST_P(ElasticNodes, OnlyWaitOnceTheFirstWorkerHasSucceeded) {
  Cluster cluster({.meeting = GetParam(),
                   .nnodes = "1:2",
                   .nproc = 2,
                   .actions = {"on-rank", "0", "exit", "0", "until", "{folder}/finish"}});
  cluster.start(0);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  // Reaped, which is when the agent tells its leader; one elsewhere says that it was told.
  const pid_t first = cluster.workers(0).at(0).pid;
  ASSERT_TRUE(eventually([&] { return ::kill(first, 0) != 0; }));
  if (GetParam() == Meeting::kLeader) {
    ASSERT_TRUE(cluster.leader().reaches(
        [&] { return cluster.leader().err().find("ended with 0") != std::string::npos; }));
  }
  Job& late = cluster.start(1);
  ASSERT_TRUE(late.reaches([&] { return late.err().find("finish") != std::string::npos; }))
      << cluster.told();
  expect_good_end(cluster);
  EXPECT_EQ(cluster.last_round(), 0);
}

// ---- who leads

TEST(C10dNodes, LetTheFirstLeadWhereTheEndpointIsEverybodys) {
  Cluster cluster({.nnodes = "3", .says_who_leads = false});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  expect_good_end(cluster);
}

TEST(C10dNodes, MayBeSeveralJobsAtOnceEachWithItsOwnEndpoint) {
  Cluster one({}), other({});
  for (const int node : {1, 0}) {
    one.start(node);
    other.start(node);
  }
  ASSERT_EQ(one.next_round(2), 0) << one.told();
  ASSERT_EQ(other.next_round(2), 0) << other.told();
  expect_good_end(one);
  expect_good_end(other);
}

TEST(C10dNodes, SayThatTheEndpointIsTakenToWhoMustLead) {
  Cluster cluster({});
  Job store(ddpctl({"store", "--listen", cluster.endpoint()}));
  ASSERT_TRUE(store.reaches([&] { return !store.out().empty(); })) << store.err();
  cluster.start(0);
  EXPECT_NE(cluster[0].wait(), exited(0));
  EXPECT_THAT(cluster[0].err(), HasSubstr(cluster.endpoint()));
}

}  // namespace
}  // namespace ddprun::test
