#include "rendezvous/round/left_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using Cause = LeftOutHost::Cause;

const HostName kOne{"b1", "10.0.0.1"};
const HostName kTwo{"b2", "10.0.0.2"};

class LeftOut : public ::testing::Test {
 protected:
  void fails(const HostName& host, int rank, CoreTime at = {}) {
    WorkerFailure failure;
    failure.rank = rank;
    hosts.failed(host, failure, at);
  }
  bool is_left_out(const HostName& host) const { return hosts.standing(host) != Standing::kFit; }
  LeftOutHosts hosts;
};

TEST_F(LeftOut, IsAHostToWhichThreeFailuresLead) {
  fails(kOne, 0);
  fails(kOne, 1);
  fails(kTwo, 7);
  EXPECT_FALSE(is_left_out(kOne));
  fails(kOne, 0);
  ASSERT_TRUE(is_left_out(kOne));
  EXPECT_EQ(hosts.why(kOne), "3 failures within an hour led to it");
  EXPECT_FALSE(is_left_out(kTwo));
}

TEST_F(LeftOut, CountsLossesAndFailures) {
  hosts.was_lost(kOne, {});
  hosts.was_lost(kTwo, {});
  fails(kOne, 3);
  hosts.was_lost(kOne, {});
  EXPECT_TRUE(is_left_out(kOne));
  EXPECT_FALSE(is_left_out(kTwo));
}

TEST_F(LeftOut, CountsForAnHour) {
  fails(kOne, 0);
  fails(kOne, 0, CoreTime(30min));
  fails(kOne, 0, CoreTime(60min));
  EXPECT_FALSE(is_left_out(kOne)) << "the first is an hour ago";
  fails(kOne, 0, CoreTime(89min));
  EXPECT_TRUE(is_left_out(kOne));
}

TEST_F(LeftOut, DoesNotCountWhatIsNoFaultOfTheHost) {
  WorkerFailure failure;
  failure.asked_by = "ddpctl replace (root, pid 1)";
  for (int i = 0; i < 3; ++i) hosts.failed(kOne, failure, {});
  failure.asked_by.clear();
  failure.killed_for_memory = true;
  for (int i = 0; i < 3; ++i) hosts.failed(kOne, failure, {});
  EXPECT_FALSE(is_left_out(kOne));
}

TEST_F(LeftOut, IsNoHostWhoseRankFailsElsewhereToo) {
  for (int i = 0; i < 3; ++i) fails(kOne, 5);
  ASSERT_TRUE(is_left_out(kOne));
  fails(kTwo, 5);
  EXPECT_FALSE(is_left_out(kOne)) << "the program fails, wherever the rank runs";
  for (int i = 0; i < 5; ++i) fails(kTwo, 5, CoreTime(59min));
  for (int i = 0; i < 5; ++i) fails(kOne, 5, CoreTime(59min));
  EXPECT_FALSE(is_left_out(kOne));
  EXPECT_FALSE(is_left_out(kTwo));
  for (int i = 0; i < 3; ++i) fails(kTwo, 5, CoreTime(61min));
  EXPECT_TRUE(is_left_out(kTwo)) << "an hour later the rank counts again";
}

TEST_F(LeftOut, IsNoHostToWhichFewerFailuresLeadThanToAllOthers) {
  for (int i = 0; i < 2; ++i) fails(kTwo, 10 + i);
  fails({"b3", "10.0.0.3"}, 20);
  for (int i = 0; i < 3; ++i) fails(kOne, i);
  EXPECT_FALSE(is_left_out(kOne));
  fails(kOne, 3);
  EXPECT_TRUE(is_left_out(kOne));
}

TEST_F(LeftOut, RemainsAHostWithThreeFailuresOfOtherRanks) {
  for (int i = 0; i < 3; ++i) fails(kOne, 5);
  for (int i = 0; i < 3; ++i) fails(kOne, 6);
  fails(kTwo, 5);
  EXPECT_TRUE(is_left_out(kOne));
  fails(kTwo, 6);
  EXPECT_FALSE(is_left_out(kOne));
}

TEST_F(LeftOut, HasEachReasonUntilThatIsOver) {
  hosts.leave_out({kOne, Cause::kDrained, "Ann"});
  hosts.leave_out({kOne, Cause::kUnfit, "a GPU is gone"});
  hosts.leave_out({kOne, Cause::kUnfit, "GPU 5 is lost"});
  EXPECT_EQ(hosts.why(kOne), "Ann; GPU 5 is lost");
  EXPECT_EQ(hosts.standing(kOne), Standing::kUnfit);
  for (int i = 0; i < 3; ++i) fails(kOne, 5);
  fails(kTwo, 5);
  EXPECT_EQ(hosts.standing(kOne), Standing::kUnfit) << "no rank acquits a host of its GPU";
  hosts.is_fit(kOne);
  EXPECT_EQ(hosts.standing(kOne), Standing::kDrained);
  hosts.leave_out({kOne, Cause::kUnfit, "a GPU is gone"});
  hosts.take_back(kOne);
  EXPECT_EQ(hosts.standing(kOne), Standing::kFit);
}

TEST_F(LeftOut, CountsAnewAfterAUserHasTakenItBack) {
  for (int i = 0; i < 3; ++i) fails(kOne, i);
  hosts.take_back(kOne);
  for (int i = 0; i < 2; ++i) fails(kOne, i);
  EXPECT_FALSE(is_left_out(kOne));
}

TEST_F(LeftOut, ForgetsWhatAUserHasSaidLast) {
  const auto host = [](std::size_t number) { return HostName{std::to_string(number), ""}; };
  for (std::size_t i = 0; i < LeftOutHosts::kReasonsMax - 1; ++i) {
    hosts.leave_out({host(i), Cause::kDrained, "Ann"});
  }
  hosts.leave_out({kOne, Cause::kUnfit, "a GPU is gone"});
  hosts.leave_out({kTwo, Cause::kDrained, "Ann"});
  EXPECT_EQ(hosts.all().size(), LeftOutHosts::kReasonsMax);
  EXPECT_FALSE(is_left_out(kOne));
  EXPECT_TRUE(is_left_out(host(0)));
}

}  // namespace
}  // namespace ddprun::rdzv
