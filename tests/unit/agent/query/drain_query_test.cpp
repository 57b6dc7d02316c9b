#include "agent/query/drain_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using State = MemberStatus::State;
using ::testing::HasSubstr;

class DrainQuery : public ::testing::Test {
 protected:
  void add(const std::string& host, const std::string& address, State state = State::kInRound) {
    MemberStatus member;
    member.id = static_cast<std::uint32_t>(leader.members.size()) + 10;
    member.host = host;
    member.address = address;
    member.state = state;
    if (state == State::kInRound) member.node_rank = static_cast<int>(leader.members.size());
    leader.members.push_back(member);
  }
  std::string found(std::string_view name) const {
    const auto host = host_to_drain(leader, name);
    return host ? host->address : "none";
  }
  int missing(std::string_view name) const { return host_to_drain(leader, name)->missing; }
  std::string refusal(std::string_view name) const {
    return host_to_drain(leader, name).error().message;
  }
  LeaderStatus leader;
};

TEST_F(DrainQuery, FindsANodeByItsHostItsAddressOrItsRank) {
  add("b1", "10.0.0.1");
  add("b2", "10.0.0.2");
  EXPECT_EQ(found("b2"), "10.0.0.2");
  EXPECT_EQ(found("10.0.0.1"), "10.0.0.1");
  EXPECT_EQ(found("1"), "10.0.0.2");
  EXPECT_EQ(refusal("2"),
            "no node of the job is called '2'; there are b1 (10.0.0.1), b2 (10.0.0.2)");
}

TEST_F(DrainQuery, TakesNoRankOfANodeThatIsInNoRound) {
  add("b1", "10.0.0.1");
  add("b2", "10.0.0.2", State::kSpare);
  leader.members.back().node_rank = 1;  // asked for
  EXPECT_EQ(found("1"), "none");
}

TEST_F(DrainQuery, RefusesANameOfSeveralHosts) {
  add("b1", "10.0.0.1");
  add("b1", "10.0.0.2");
  EXPECT_THAT(refusal("b1"), HasSubstr("several nodes are called 'b1'; give the address of one"));
  add("b3", "10.0.0.3");
  add("b3", "10.0.0.3");
  EXPECT_EQ(found("b3"), "10.0.0.3") << "two nodes on one host are left out together";
}

TEST_F(DrainQuery, KnowsHowManyOtherNodesAreMissing) {
  leader.min_nodes = 2;
  add("b1", "10.0.0.1");
  add("b2", "10.0.0.2");
  EXPECT_EQ(missing("b1"), 1);
  add("b3", "10.0.0.3", State::kSpare);
  EXPECT_EQ(missing("b1"), 0);
  leader.members.back().left_out = "Ann";
  EXPECT_EQ(missing("b1"), 1) << "it is to be left out as well";
  leader.members.back().left_out.clear();
  leader.members.back().state = State::kDisconnected;
  EXPECT_EQ(missing("b1"), 1);
}

TEST_F(DrainQuery, RefusesWhereNoOtherNodeCanCome) {
  add("b1", "10.0.0.1");
  leader.has_exact_ranks = true;
  EXPECT_THAT(refusal("b1"), HasSubstr("no other node can come"));
}

TEST_F(DrainQuery, KnowsTheNodeThatLeads) {
  add("b1", "10.0.0.1");
  leader.members.back().leads = true;
  add("b2", "10.0.0.2");
  EXPECT_TRUE(host_to_drain(leader, "b1")->leads);
  EXPECT_FALSE(host_to_drain(leader, "b2")->leads);
}

TEST_F(DrainQuery, UndrainsAHostThatIsNotThere) {
  add("b1", "10.0.0.1");
  leader.left_out = {{"b7", "10.0.0.7", "Ann"}};
  EXPECT_EQ(host_to_undrain(leader, "b7")->address, "10.0.0.7");
  EXPECT_EQ(host_to_undrain(leader, "10.0.0.7")->why, "Ann");
  EXPECT_EQ(host_to_undrain(leader, "b1")->why, "") << "it was not to be left out";
  EXPECT_FALSE(host_to_undrain(leader, "b8"));
  EXPECT_FALSE(host_to_drain(leader, "b7"));
}

TEST_F(DrainQuery, NamesSomeOfVeryManyNodes) {
  for (int i = 0; i < 100; ++i) add("b" + std::to_string(i), "10.0.0." + std::to_string(i));
  EXPECT_THAT(refusal("x"), HasSubstr("b7 (10.0.0.7) and 92 more"));
}

}  // namespace
}  // namespace ddprun::agent
