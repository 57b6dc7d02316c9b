// A job on nodes of a network: each node is like a separate machine, and its cable can be cut, slow
// or lossy. After each fault the job continues or ends as documented, and nothing is left on any
// node.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "rendezvous/store_client/store_client.h"
#include "tests/support/cluster.h"
#include "tests/support/raw_http.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::test {
namespace {

using namespace std::chrono_literals;
using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::StartsWith;

// What the architecture promises, by default settings; the machine may be busy with other tests.
constexpr seconds kSilenceIsNoticedWithin{10};

// The settings of most: silence of three seconds is a loss.
constexpr char kQuickly[] = "keep_alive_interval=1,keep_alive_max_attempt=3";

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto& why = Network::obstacle()) GTEST_SKIP() << *why;
  }

  Cluster& cluster_of(int nodes, ClusterSetup setup, bool with_names = true) {
    network_.emplace(nodes, with_names);
    return cluster_.emplace(std::move(setup), &*network_);
  }
  void expect_good_end() {
    cluster_->let_finish();
    EXPECT_THAT(cluster_->wait(), Each(Pair(_, exited(0)))) << cluster_->told();
    EXPECT_EQ(cluster_->leader().wait(), exited(0)) << cluster_->told();
    EXPECT_THAT(network_->left_over(), IsEmpty());
  }
  // A worker that is killed is how a test sees that nodes are still members, or again: the next
  // round is the next number, and all are in it.
  void expect_restart_to(int round, int world) {
    kill(cluster_->workers(cluster_->last_round()).at(world - 1).pid, SIGKILL);
    ASSERT_EQ(cluster_->next_round(world), round) << cluster_->told();
  }

  std::optional<Network> network_;
  std::optional<Cluster> cluster_;
};

// Another host that knows where a job meets, and nothing else.
TEST_F(NetworkTest, AStrangersHostTakesPartInAJobWithoutATokenWhichSaysSo) {
  Cluster& cluster = cluster_of(2, {.meeting = Meeting::kC10d});
  cluster.start(0);
  Job stranger(cluster.command(1), cluster.on(1));
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_THAT(cluster[0].err(),
              AllOf(HasSubstr("without a token, any host that reaches 10.77.0.1:"),
                    HasSubstr("ddpctl token FILE"), HasSubstr("--no-token")));
  EXPECT_EQ(count_of("any host", cluster[0].err()), 1U);
  EXPECT_THAT(stranger.err(), Not(HasSubstr("any host"))) << "it has no port";
  expect_good_end();
}

TEST_F(NetworkTest, ThatAnyHostMayTakePartIsNotSaidWhereItIsADecision) {
  for (const Meeting meeting : {Meeting::kC10d, Meeting::kLeader}) {
    Cluster& cluster = cluster_of(2, {.meeting = meeting, .options = {"--no-token"}});
    cluster.start_all(2);
    ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
    EXPECT_THAT(cluster.told(), Not(HasSubstr("any host")));
    expect_good_end();
    cluster_.reset();
  }
}

TEST_F(NetworkTest, AStrangersHostIsRefusedWhereThereIsAToken) {
  Cluster& cluster = cluster_of(3, {.meeting = Meeting::kC10d});
  const std::string token = cluster.folder() / "token";
  write_file(token, "correct horse battery staple", 0600);
  cluster.start(0, {"--token-file=" + token});
  Job stranger(cluster.command(1), cluster.on(2));
  EXPECT_EQ(stranger.wait(), exited(2)) << stranger.err() << cluster.told();
  EXPECT_THAT(cluster[0].err(), HasSubstr("turned away node2 (10.77.0.3): it has no token"));
  cluster.start(1, {"--token-file=" + token});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_THAT(cluster.told(), Not(HasSubstr("any host")));
  expect_good_end();
}

// On hosts of their own: drained by name, and taken back; then one becomes unfit.
TEST_F(NetworkTest, NodesThatAreToBeLeftOutGiveTheirPlaceToASpare) {
  const TemporaryTree sockets;
  const std::map<std::string, std::string> environment{{"DDPRUN_CONTROL_DIR", sockets / "ddprun"},
                                                       {"DDPRUN_TEST_MINUTE_MS", "50"}};
  Cluster& cluster = cluster_of(3, {.options = {"--no-token"}, .environment = environment});
  for (const int node : {0, 1}) cluster.start(node);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const std::string bad = cluster.folder() / "bad";
  cluster.start(2, {"--health-check=test ! -e " + bad});
  ASSERT_TRUE(cluster[2].reaches([&] {
    return cluster[2].err().find("this node waits") != std::string::npos;
  })) << cluster.told();
  const auto ask = [&](const std::string& what) {
    Job command(ddpctl({what, "node1", std::to_string(cluster[0].pid())}),
                {.environment = environment});
    EXPECT_EQ(command.wait(), exited(0)) << command.err() << cluster.told();
  };
  ask("drain");
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(1), ElementsAre(Pair(0, 0), Pair(2, 1)));
  ask("undrain");
  write_file(bad, "");
  ASSERT_EQ(cluster.next_round(2), 2) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(2), ElementsAre(Pair(0, 0), Pair(1, 1)));
  EXPECT_THAT(cluster[0].err(), HasSubstr("node 1 (node2) is to be left out: the health check '"));
  expect_good_end();
}

class EveryMeeting : public NetworkTest,
                     public ::testing::WithParamInterface<std::tuple<Meeting, bool>> {};
INSTANTIATE_TEST_SUITE_P(By, EveryMeeting,
                         ::testing::Combine(::testing::Values(Meeting::kStatic, Meeting::kC10d,
                                                              Meeting::kLeader),
                                            ::testing::Bool()),
                         [](const auto& which) {
                           return ::testing::PrintToString(std::get<0>(which.param)) +
                                  (std::get<1>(which.param) ? "OverIpv6" : "OverIpv4");
                         });

TEST_P(EveryMeeting, MakesOneWorldOfTwoNodesAndRestartsIt) {
  const auto [meeting, is_ipv6] = GetParam();
  Cluster& cluster = cluster_of(
      2, {.meeting = meeting, .nproc = 2, .options = {"--max-restarts=1"}, .is_ipv6 = is_ipv6});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(0), ElementsAre(Pair(0, 0), Pair(1, 2)));
  EXPECT_EQ(cluster.environment(0, 3)["MASTER_ADDR"], cluster.address());
  expect_restart_to(1, 4);
  expect_good_end();
}

// ---- names and addresses

TEST_F(NetworkTest, RanksFollowTheNaturalOrderOfHostNames) {
  Cluster& cluster = cluster_of(4, {.meeting = Meeting::kLeader, .nnodes = "4"});
  const std::vector<std::string> names{"node10", "node9", "node2", "node100"};
  for (int node = 0; node < 4; ++node) {
    network_->rename(node, names[static_cast<std::size_t>(node)]);
    cluster.start(node);
  }
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(0), ElementsAre(Pair(0, 2), Pair(1, 1), Pair(2, 0), Pair(3, 3)));
  expect_good_end();
}

TEST_F(NetworkTest, TheMasterIsOnTheNodeOfRankZeroWhereverThatIs) {
  Cluster& cluster = cluster_of(2, {});
  cluster.start(0, {"--node-rank=1"});
  cluster.start(1, {"--node-rank=0"});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_EQ(cluster.environment(0, 0)["MASTER_ADDR"], Network::address(1));
  EXPECT_EQ(cluster.environment(0, 1)["MASTER_ADDR"], Network::address(1));
  expect_good_end();
}

TEST_F(NetworkTest, ANodeWithSeveralAddressesIsReachedAtTheOneItNames) {
  Cluster& cluster = cluster_of(2, {});
  cluster.start(0, {"--node-rank=1"});
  cluster.start(1, {"--node-rank=0", "--local-addr=" + Network::address6(1)});
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_EQ(cluster.environment(0, 0)["MASTER_ADDR"], Network::address6(1));
  expect_good_end();
}

class LateNames : public NetworkTest, public ::testing::WithParamInterface<Meeting> {};
INSTANTIATE_TEST_SUITE_P(By, LateNames, ::testing::Values(Meeting::kStatic, Meeting::kC10d),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

// As pods do: their names are known when they run, and they start in any order.
TEST_P(LateNames, AreAwaitedWithALineThatSaysSo) {
  Cluster& cluster = cluster_of(2, {.meeting = GetParam()}, /*with_names=*/false);
  const std::vector<std::string> by_name = GetParam() == Meeting::kStatic
                                               ? std::vector<std::string>{"--master-addr=node0"}
                                               : std::vector<std::string>{"--rdzv-endpoint=node0"};
  for (const int node : {1, 0}) {
    Job& agent = cluster.start(node, by_name);
    // Who has --node-rank=0 knows without a name that it leads.
    if (GetParam() == Meeting::kStatic && node == 0) continue;
    ASSERT_TRUE(agent.reaches([&] { return agent.err().find("node0") != std::string::npos; }))
        << cluster.told();
  }
  network_->add_name(1);
  network_->add_name(0);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  expect_good_end();
}

// The agent of rank 0 serves the store; which node leads has nothing to do with it.
class LostMaster : public NetworkTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(By, LostMaster, ::testing::Values(SIGKILL, SIGTERM, SIGSTOP),
                         [](const auto& which) { return "Signal" + std::to_string(which.param); });

TEST_P(LostMaster, IsFollowedByAnotherNodes) {
  Cluster& cluster = cluster_of(3, {.nnodes = "2:3", .nproc = 2, .conf = kQuickly});
  cluster.start(0, {"--node-rank=2"});
  cluster.start(1, {"--node-rank=0"});
  cluster.start(2, {"--node-rank=1"});
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  EXPECT_EQ(cluster.environment(0, 5)["MASTER_ADDR"], Network::address(1));
  cluster[1].signal(GetParam());
  ASSERT_EQ(cluster.next_round(4), 1) << cluster.told();
  EXPECT_EQ(cluster.environment(1, 3)["MASTER_ADDR"], Network::address(2));
  cluster.forget(1);
  expect_good_end();
}

// ---- the leader

Command static_node(const std::vector<std::string>& options, const std::string& master) {
  std::vector<std::string> all{"--nnodes=3", "--master-addr=" + master, "--master-port=29500"};
  all.insert(all.end(), options.begin(), options.end());
  return ddprun(all, {"/bin/true"});
}

TEST_F(NetworkTest, ANodeWithoutARankDoesNotLeadAtAnotherNodesAddress) {
  network_.emplace(2);
  for (const std::string& master : {Network::address(0), Network::host(0)}) {
    Job job(static_node({}, master), network_->on(1));
    EXPECT_EQ(job.wait(), exited(2)) << job.err();
    EXPECT_THAT(job.err(), AllOf(HasSubstr("no --node-rank was given, and " + master + ":29500"),
                                 HasSubstr("is no address of this machine")));
  }
  Job leader(static_node({"--node-rank=0"}, Network::address(0)), network_->on(1));
  EXPECT_TRUE(leader.reaches([&] {
    return leader.err().find("1 of 3 are here") != std::string::npos;
  })) << leader.err();
  EXPECT_THAT(leader.err(), HasSubstr("which is no address of this machine"));
}

TEST_F(NetworkTest, TheFirstLineOfALeaderSaysWhereItListensAndWhichRanksAreMissing) {
  network_.emplace(1);
  Job leader(static_node({}, Network::host(0)), network_->on(0));
  EXPECT_TRUE(leader.reaches([&] {
    return leader.err().find(
               "this node leads at node0:29500; waiting for nodes: 1 of 3 are here, "
               "900 s left; node ranks 1 and 2 are missing\n") != std::string::npos;
  })) << leader.err();
}

TEST_F(NetworkTest, ANameWithoutAnAddressIsNamedByTheNodeThatLeadsThere) {
  network_.emplace(2, /*with_names=*/false);
  Job own(static_node({}, "node0.cluster"), network_->on(0));
  EXPECT_TRUE(own.reaches([&] { return own.err().find("1 of 3 are here") != std::string::npos; }))
      << own.err();
  EXPECT_THAT(
      own.err(),
      AllOf(HasSubstr("node0.cluster:29500, where other nodes and workers may not find it: "),
            HasSubstr("it is this node's own name: add it to /etc/hosts")));
  Job other(static_node({"--node-rank=0"}, "node0"), network_->on(1));
  EXPECT_TRUE(other.reaches([&] {
    return other.err().find("1 of 3 are here") != std::string::npos;
  })) << other.err();
  EXPECT_THAT(other.err(), AllOf(HasSubstr("other nodes and workers may not find it: "),
                                 Not(HasSubstr("this node's own name"))));
  // It may become known as another node's.
  Job by_default(static_node({"--rdzv-conf=timeout=2"}, "node0"), network_->on(1));
  EXPECT_EQ(by_default.wait(), exited(kRendezvousTimeout)) << by_default.err();
  EXPECT_THAT(by_default.err(), HasSubstr("the endpoint node0:29500"));
}

// ---- cables

TEST_F(NetworkTest, APulledCableEndsTheRoundForBothSidesInTime) {
  Cluster& cluster = cluster_of(3, {.nnodes = "2:3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  network_->cut(2);
  ASSERT_EQ(cluster.next_round(4, kSilenceIsNoticedWithin), 1) << cluster.told();
  EXPECT_THAT(cluster[0].err(), AllOf(HasSubstr("node2"), HasSubstr("nothing was heard")));
  // Behind the cut the leader is what is lost.
  EXPECT_EQ(cluster[2].wait(kSilenceIsNoticedWithin), exited(kLeaderLost)) << cluster.told();
  EXPECT_THAT(cluster[2].left_over(), IsEmpty());

  network_->join(2);
  cluster.start(2);
  ASSERT_EQ(cluster.next_round(6), 2) << cluster.told();
  expect_good_end();
}

TEST_F(NetworkTest, ACableThatCarriesOneWayOnlyIsAsGoodAsNone) {
  for (const bool sends : {true, false}) {
    SCOPED_TRACE(sends ? "the node is deaf" : "the node is mute");
    Cluster& cluster = cluster_of(3, {.nnodes = "2:3", .conf = kQuickly});
    cluster.start_all(3);
    ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
    network_->set_cable(2, {.sends = sends, .receives = !sends});
    ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
    EXPECT_EQ(cluster[2].wait(), exited(kLeaderLost)) << cluster.told();
    cluster.forget(2);
    expect_good_end();
    cluster_.reset();
  }
}

TEST_F(NetworkTest, ACutThatIsMendedInTimeEndsNoRound) {
  Cluster& cluster = cluster_of(2, {.nproc = 2, .options = {"--max-restarts=1"}, .conf = kQuickly});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  network_->cut(1);
  std::this_thread::sleep_for(1500ms);  // this is how long the fault lasts
  network_->join(1);
  expect_restart_to(1, 4);
  expect_good_end();
}

TEST_F(NetworkTest, ABrokenConnectionIsResumedAndEndsNoRound) {
  Cluster& cluster = cluster_of(2, {.nproc = 2, .options = {"--max-restarts=3"}, .conf = kQuickly});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(network_->break_connection(1, cluster.port()));
    expect_restart_to(round, 4);
  }
  expect_good_end();
}

TEST_F(NetworkTest, ASlowAndLossyNetworkOnlyTakesLonger) {
  Cluster& cluster = cluster_of(3, {.nnodes = "3", .options = {"--max-restarts=3"}});
  for (int node = 0; node < 3; ++node) {
    network_->set_cable(node, {.delay = 10ms, .jitter = 10ms, .loss = 0.01});
  }
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3, seconds(60)), 0) << cluster.told();
  for (int round = 1; round <= 3; ++round) expect_restart_to(round, 3);
  expect_good_end();
}

// ---- agents that stop, die, and come back

TEST_F(NetworkTest, AStoppedAgentIsLostInTimeAndComesBackWhenItGoesOn) {
  Cluster& cluster = cluster_of(3, {.nnodes = "2:3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster[2].signal(SIGSTOP);
  ASSERT_EQ(cluster.next_round(4, kSilenceIsNoticedWithin), 1) << cluster.told();
  EXPECT_THAT(cluster[0].err(), AllOf(HasSubstr("node2"), HasSubstr("nothing was heard")));
  cluster[2].signal(SIGCONT);
  ASSERT_EQ(cluster.next_round(6), 2) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(2), ElementsAre(Pair(0, 0), Pair(1, 2), Pair(2, 4)));
  expect_good_end();
}

TEST_F(NetworkTest, AStoppedAgentComesBackAsASpareWhenAnotherHasItsPlace) {
  Cluster& cluster = cluster_of(3, {.nnodes = "2", .conf = kQuickly});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster.start(2);
  cluster[1].signal(SIGSTOP);
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  EXPECT_THAT(cluster.first_ranks(1), ElementsAre(Pair(0, 0), Pair(2, 1)));
  cluster[1].signal(SIGCONT);
  ASSERT_TRUE(cluster[1].reaches([&] {
    return cluster[1].err().find("this node waits") != std::string::npos;
  })) << cluster.told();
  expect_good_end();
}

TEST_F(NetworkTest, AStaticNodeThatWasStoppedIsAwaited) {
  Cluster& cluster = cluster_of(2, {.meeting = Meeting::kStatic, .conf = kQuickly});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  cluster[1].signal(SIGSTOP);
  ASSERT_TRUE(eventually([&] { return cluster[0].workers().empty(); })) << cluster.told();
  cluster[1].signal(SIGCONT);
  ASSERT_GE(cluster.next_round(2), 1) << cluster.told();
  expect_good_end();
}

TEST_F(NetworkTest, AKilledAgentIsReplacedAtOnceByTheNodeThatIsStartedAgain) {
  Cluster& cluster = cluster_of(2, {.meeting = Meeting::kStatic, .nproc = 2});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  cluster[1].signal(SIGKILL);
  EXPECT_EQ(cluster[1].wait(), killed_by(SIGKILL));
  EXPECT_THAT(cluster[1].left_over(), IsEmpty());
  cluster.start(1);
  ASSERT_GE(cluster.next_round(4), 1) << cluster.told();
  expect_good_end();
}

TEST_F(NetworkTest, ALostNodeIsNamedOnEveryNodeBeforeItIsBack) {
  Cluster& cluster = cluster_of(3, {.meeting = Meeting::kStatic, .nnodes = "3"});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(3), 0) << cluster.told();
  cluster[2].signal(SIGKILL);
  const std::string lost = "node 2 (node2) was lost: its connection broke and did not come back";
  for (const int node : {0, 1}) {
    EXPECT_TRUE(cluster[node].reaches([&] {
      return cluster[node].err().find(lost) != std::string::npos;
    })) << cluster.told();
  }
  EXPECT_TRUE(cluster[0].reaches([&] {
    return cluster[0].err().find("node rank 2 is missing") != std::string::npos;
  })) << cluster.told();
  cluster.start(2);
  ASSERT_GE(cluster.next_round(3), 1) << cluster.told();
  for (const int node : {0, 1}) EXPECT_EQ(count_of(lost, cluster[node].err()), 1U);
  expect_good_end();
}

class LostLeader : public NetworkTest, public ::testing::WithParamInterface<Meeting> {
 protected:
  // Everybody but the leader: stopped, gone, and with the right code.
  void expect_the_others_to_go(seconds deadline) {
    for (const int node : {1, 2}) {
      EXPECT_EQ((*cluster_)[node].wait(deadline), exited(kLeaderLost)) << cluster_->told();
      EXPECT_THAT((*cluster_)[node].err(), HasSubstr("leader"));
      EXPECT_THAT((*cluster_)[node].left_over(), IsEmpty());
    }
  }
};
INSTANTIATE_TEST_SUITE_P(By, LostLeader,
                         ::testing::Values(Meeting::kStatic, Meeting::kC10d, Meeting::kLeader),
                         [](const auto& which) { return ::testing::PrintToString(which.param); });

TEST_P(LostLeader, EndsTheJobAtOnceWhenItIsKilled) {
  Cluster& cluster = cluster_of(3, {.meeting = GetParam(), .nnodes = "3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster.leader().signal(SIGKILL);
  expect_the_others_to_go(seconds(5));
  if (GetParam() == Meeting::kLeader) {
    EXPECT_EQ(cluster[0].wait(), exited(kLeaderLost)) << cluster.told();
  }
  EXPECT_THAT(network_->left_over(), IsEmpty());
}

TEST_P(LostLeader, EndsTheJobInGoodOrderWhenItGetsSigterm) {
  Cluster& cluster = cluster_of(3, {.meeting = GetParam(), .nnodes = "3", .nproc = 2});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster.leader().signal(SIGTERM);
  EXPECT_EQ(cluster.leader().wait(), exited(128 + SIGTERM)) << cluster.told();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(128 + SIGTERM)))) << cluster.told();
  EXPECT_THAT(cluster[1].err(), HasSubstr("STOPPED by SIGTERM"));
  EXPECT_THAT(network_->left_over(), IsEmpty());
}

TEST_P(LostLeader, EndsTheJobInTimeWhenItsCableIsPulled) {
  Cluster& cluster =
      cluster_of(3, {.meeting = GetParam(), .nnodes = "3", .nproc = 2, .conf = kQuickly});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  network_->cut(0);
  expect_the_others_to_go(kSilenceIsNoticedWithin);
}

// When it goes on it is alone, and ends as a job does that has lost its nodes.
TEST_P(LostLeader, EndsTheJobInTimeWhenItIsStoppedAndItselfWhenItGoesOn) {
  Cluster& cluster = cluster_of(3, {.meeting = GetParam(),
                                    .nnodes = "3",
                                    .nproc = 2,
                                    .conf = kQuickly + std::string(",timeout=2,join_timeout=2")});
  cluster.start_all(3);
  ASSERT_EQ(cluster.next_round(6), 0) << cluster.told();
  cluster.leader().signal(SIGSTOP);
  expect_the_others_to_go(kSilenceIsNoticedWithin);
  cluster.leader().signal(SIGCONT);
  EXPECT_EQ(cluster.leader().wait(), exited(kBelowMinimum)) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

TEST_P(LostLeader, EndsTheWaitToo) {
  for (const int signal : {SIGKILL, SIGTERM}) {
    Cluster& cluster = cluster_of(2, {.meeting = GetParam(), .nnodes = "3"});
    cluster.start_all(2);
    // The one that came second is told so at once.
    ASSERT_TRUE(cluster[1].reaches([&] {
      return cluster.told().find("2 of 3 are here") != std::string::npos;
    })) << cluster.told();
    cluster.leader().signal(signal);
    EXPECT_EQ(cluster[1].wait(), exited(signal == SIGTERM ? 128 + SIGTERM : kLeaderLost))
        << cluster.told();
    cluster_.reset();
  }
}

// The same command as before, at once, while a node of the lost job sleeps that will find another
// leader where its own was.
TEST_P(LostLeader, CanBeStartedAgainAndWhoIsLeftOfTheLastRunChangesNothing) {
  const ClusterSetup setup{.meeting = GetParam(), .conf = kQuickly};
  Cluster& lost = cluster_of(2, setup);
  lost.start_all(2);
  ASSERT_EQ(lost.next_round(2), 0) << lost.told();
  lost[1].signal(SIGSTOP);
  lost.leader().signal(SIGKILL);
  lost.leader().wait();
  // An agent that still seeks its leader would join the next one at the same place.
  lost[0].wait();

  Cluster again(setup, &*network_);
  again.start_all(2);
  ASSERT_EQ(again.next_round(2), 0) << again.told();
  lost[1].signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return lost[1].workers().empty(); })) << lost.told();
  again.let_finish();
  EXPECT_THAT(again.wait(), Each(Pair(_, exited(0)))) << again.told();
  EXPECT_EQ(again.last_round(), 0) << again.told();
  // It was told of the job's end, or came after it and waits for a leader.
  lost[1].signal(SIGTERM);
  EXPECT_NE(lost[1].wait(), Ended{}) << lost.told();
}

// ---- more nodes

TEST_F(NetworkTest, EightNodesGoThroughAllOfItInTurn) {
  Cluster& cluster =
      cluster_of(8, {.nnodes = "4:8", .options = {"--max-restarts=2"}, .conf = kQuickly});
  cluster.start_all(8);
  ASSERT_EQ(cluster.next_round(8), 0) << cluster.told();
  expect_restart_to(1, 8);
  cluster[7].signal(SIGKILL);
  ASSERT_EQ(cluster.next_round(7), 2) << cluster.told();
  cluster[6].signal(SIGTERM);
  ASSERT_EQ(cluster.next_round(6), 3) << cluster.told();
  network_->cut(5);
  const int after_the_cut = cluster.next_round(5);
  ASSERT_GE(after_the_cut, 4) << cluster.told();
  network_->join(5);
  for (const int node : {5, 6, 7}) cluster.forget(node);
  for (int node = 5; node < 8; ++node) {
    cluster.start(node);
    ASSERT_GE(cluster.next_round(node + 1), after_the_cut + 1) << cluster.told();
  }
  expect_restart_to(cluster.last_round() + 1, 8);
  expect_good_end();
}

// ---- metrics that other machines read

TEST_F(NetworkTest, APrometheusOfAnotherMachineScrapesAllNodesAndProbesAreAnswered) {
  if (std::system("command -v prometheus >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "prometheus is not installed; scripts/setup installs it";
  }
  constexpr int kWatcher = 2;
  Cluster& cluster =
      cluster_of(3, {.options = {"--metrics-port=9400", "--metrics-address=0.0.0.0"}});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  EXPECT_THAT(cluster[1].err(), HasSubstr("metrics: http://node1:9400/metrics, with /healthz and "
                                          "/livez, for every machine that reaches this address"));
  const auto get = [&](const char* host, std::uint16_t port, const std::string& path) {
    std::string reply;
    network_->within(kWatcher, [&] {
      RawHttp client(port, host);
      client.send("GET " + path + " HTTP/1.1\r\nHost: node1:9400\r\nConnection: close\r\n\r\n");
      reply = client.read_all();
    });
    return reply;
  };
  const std::string node = Network::address(1);
  EXPECT_THAT(get(node.c_str(), 9400, "/healthz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(get(node.c_str(), 9400, "/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
  for (const std::string page : {"/", "/events"}) {
    EXPECT_THAT(get(node.c_str(), 9400, page),
                AllOf(StartsWith("HTTP/1.1 403 "), HasSubstr("for this machine only")));
  }
  const TemporaryTree folder;
  write_file(folder / "prometheus.yml",
             "global: {scrape_interval: 1s}\n"
             "scrape_configs:\n"
             "- job_name: ddprun\n"
             "  static_configs: [{targets: ['node0:9400', 'node1:9400']}]\n");
  std::filesystem::create_directory(folder / "data");
  Job prometheus(
      {"prometheus", "--config.file=" + (folder / "prometheus.yml"),
       "--storage.tsdb.path=" + (folder / "data"), "--web.listen-address=127.0.0.1:9090"},
      network_->on(kWatcher));
  std::string answer;
  EXPECT_TRUE(prometheus.reaches([&] {
    answer = get("127.0.0.1", 9090, "/api/v1/query?query=sum(up)%2Bmax(ddprun_world_size)");
    return answer.find("\"4\"]") != std::string::npos;  // 2 nodes are up, and 2 ranks
  })) << answer
      << prometheus.err();
  prometheus.signal(SIGTERM);
  EXPECT_EQ(prometheus.wait(), exited(0)) << prometheus.err();
  expect_good_end();
}

// ---- endpoints that cannot be reached

TEST_F(NetworkTest, AnEndpointThatIsCutOffIsNamedWithTheAddressThatWasTried) {
  Cluster& cluster = cluster_of(2, {.conf = "join_timeout=3"});
  network_->cut(0);
  Job& agent = cluster.start(1, {"--rdzv-endpoint=node0:29400"});
  EXPECT_EQ(agent.wait(), exited(kRendezvousTimeout)) << agent.err();
  EXPECT_THAT(agent.err(),
              AllOf(HasSubstr("node0:29400"), HasSubstr(Network::address(0)), HasSubstr("3 s")));
}

// MASTER_PORT is known to everybody, and c10d's store asks nobody who it is.
TEST_F(NetworkTest, AStaticJobsStoreServesItsNodesOnly) {
  Cluster& cluster = cluster_of(3, {.meeting = Meeting::kStatic, .nnodes = "2"});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  const auto is_served = [&](int node) {
    bool has_answer = false;
    network_->within(node, [&] {
      const auto store = rdzv::StoreClient::connect(
          {.server = {Network::address(0), cluster.port()}, .connect_timeout = seconds(2)});
      has_answer = store && (*store)->num_keys().has_value();
    });
    return has_answer;
  };
  EXPECT_TRUE(is_served(0));
  EXPECT_TRUE(is_served(1));
  EXPECT_FALSE(is_served(2));
  EXPECT_THAT(cluster[0].err(), HasSubstr("not from a node of this job"));
  expect_good_end();
}

TEST_F(NetworkTest, AnAddressThatIsNoNodesIsNamedToo) {
  Cluster& cluster = cluster_of(2, {.meeting = Meeting::kStatic, .conf = "timeout=3"});
  Job& agent = cluster.start(1, {"--master-addr=10.77.0.200"});
  EXPECT_EQ(agent.wait(), exited(kRendezvousTimeout)) << agent.err();
  EXPECT_THAT(agent.err(), AllOf(HasSubstr("10.77.0.200"), HasSubstr("3 s")));
}

}  // namespace
}  // namespace ddprun::test
