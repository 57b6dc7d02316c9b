// A leader that is killed and started again at once, as by a service manager: the job continues
// with the next round and the rest of the budget, and no node waits without a message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/cluster.h"

namespace ddprun::test {
namespace {

using ::testing::_;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr const char* kStartedAgain = "was started again; this node stops its workers and joins";

void kill_and_start_leader(Cluster& cluster, Meeting meeting, milliseconds delay) {
  cluster.leader().signal(SIGKILL);
  ASSERT_EQ(cluster.leader().wait(), killed_by(SIGKILL));
  std::this_thread::sleep_for(delay);  // that of the service manager
  meeting == Meeting::kLeader ? cluster.start_leader() : cluster.start(0);
}

class LeaderRestart : public ::testing::TestWithParam<std::tuple<Meeting, int>> {};

INSTANTIATE_TEST_SUITE_P(By, LeaderRestart,
                         ::testing::Combine(::testing::Values(Meeting::kStatic, Meeting::kC10d,
                                                              Meeting::kLeader),
                                            ::testing::Values(0, 50, 150)),
                         [](const auto& which) {
                           return ::testing::PrintToString(std::get<0>(which.param)) + "After" +
                                  std::to_string(std::get<1>(which.param)) + "Ms";
                         });

// With a grace that a busy machine keeps.
TEST_P(LeaderRestart, LetsTheJobGoOnWithItsRoundsAndItsBudget) {
  const auto [meeting, delay] = GetParam();
  Cluster cluster({.meeting = meeting,
                   .nproc = 2,
                   .options = {"--max-restarts=1"},
                   .conf = "reconnect_grace=20000"});
  const std::string events = cluster.folder() / "events";
  cluster.start(0);
  cluster.start(1, {"--events=" + events});
  ASSERT_EQ(cluster.next_round(4), 0) << cluster.told();
  kill(cluster.workers(0).at(3).pid, SIGKILL);
  ASSERT_EQ(cluster.next_round(4), 1) << cluster.told();

  kill_and_start_leader(cluster, meeting, milliseconds(delay));
  ASSERT_EQ(cluster.next_round(4), 2) << cluster.told();
  EXPECT_EQ(cluster.environment(2, 3)["TORCHELASTIC_RESTART_COUNT"], "2");
  EXPECT_THAT(cluster[1].err(), HasSubstr(kStartedAgain));
  EXPECT_THAT(read_file(events), AllOf(HasSubstr(R"("reason":"leader_replaced")"),
                                       Not(HasSubstr(R"("reason":"declared_lost")"))));

  kill(cluster.workers(2).at(0).pid, SIGKILL);
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(128 + SIGKILL)))) << "one restart was allowed";
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

// With the usual grace, which a busy machine may miss: then the other nodes end.
TEST_P(LeaderRestart, LeavesNobodyWaitingWithoutAWord) {
  const auto [meeting, delay] = GetParam();
  Cluster cluster({.meeting = meeting});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  kill_and_start_leader(cluster, meeting, milliseconds(delay));
  const auto has_ended = [&] { return cluster[1].wait(milliseconds(0)) != Ended{}; };
  ASSERT_TRUE(eventually([&] { return has_ended() || cluster.last_round() > 0; }))
      << cluster.told();
  if (has_ended()) {
    EXPECT_EQ(cluster[1].wait(), exited(kLeaderLost)) << cluster.told();
    return;
  }
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(0)))) << cluster.told();
}

// It has begun without the other node, whose workers took their time.
TEST(LeaderThatBeganAlone, TakesANodeOfThePastIntoARoundThatTheNodeTakes) {
  Cluster cluster({.nnodes = "1:2",
                   .options = {"--shutdown-timeout=3"},
                   .conf = "reconnect_grace=20000,last_call_timeout=1",
                   .actions = {"on-round", "0", "on-rank", "1", "ignore", "15",  //
                               "until", "{folder}/finish", "exit", "0"}});
  cluster.start_all(2);
  ASSERT_EQ(cluster.next_round(2), 0) << cluster.told();
  kill_and_start_leader(cluster, Meeting::kC10d, milliseconds(0));
  ASSERT_EQ(cluster.next_round(2), 1) << cluster.told();
  cluster.let_finish();
  EXPECT_THAT(cluster.wait(), Each(Pair(_, exited(0)))) << cluster.told();
}

}  // namespace
}  // namespace ddprun::test
