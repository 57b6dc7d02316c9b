#include "rendezvous/round/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace ddprun::rdzv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

NodeId id(int number) { return NodeId{static_cast<std::uint32_t>(number)}; }

class MembershipTest : public ::testing::Test {
 protected:
  void add(int number, const std::string& host, std::optional<int> node_rank = {}) {
    NodeHello hello;
    hello.host = host;
    hello.node_rank = node_rank;
    members.add(id(number), hello);
  }
  std::vector<int> formed() {
    members.form_group();
    std::vector<int> numbers;
    for (const NodeId each : members.group()) numbers.push_back(static_cast<int>(number(each)));
    return numbers;
  }
  Membership members{1, 4};
};

TEST_F(MembershipTest, OrdersHostsAsPeopleDo) {
  add(0, "node10");
  add(1, "node9b");
  add(2, "node2");
  add(3, "node9");
  EXPECT_THAT(formed(), ElementsAre(2, 3, 1, 0));
}

TEST(NaturalLess, IsAnOrder) {
  const std::vector<std::string> ordered = {"",    "1",  "2",   "10",   "a", "a1",     "a01b",
                                            "a1c", "a2", "a10", "a10b", "b", "node-2", "node-10"};
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    for (std::size_t j = 0; j < ordered.size(); ++j) {
      EXPECT_EQ(natural_less(ordered[i], ordered[j]), i < j) << ordered[i] << ", " << ordered[j];
    }
  }
}

TEST_F(MembershipTest, SurvivorsKeepTheirOrderAndNewcomersComeAfterThem) {
  add(0, "node3");
  add(1, "node2");
  add(2, "node1");
  EXPECT_THAT(formed(), ElementsAre(2, 1, 0));
  members.remove(id(1));
  add(3, "node0");
  EXPECT_THAT(formed(), ElementsAre(2, 0, 3));
}

TEST_F(MembershipTest, GivesTheRanksThatAreAskedForWhereThatLeavesNoGap) {
  add(0, "a", 9);
  add(1, "b");
  add(2, "c", 1);
  add(3, "d", 0);
  EXPECT_THAT(formed(), ElementsAre(3, 2, 1, 0));
  members.remove(id(3));
  EXPECT_THAT(formed(), ElementsAre(1, 2, 0));
}

TEST_F(MembershipTest, EqualRanksGoByArrival) {
  add(2, "a", 1);
  add(1, "b", 1);
  add(3, "c", 0);
  EXPECT_THAT(formed(), ElementsAre(3, 1, 2));
}

TEST_F(MembershipTest, AFullGroupLeavesSparesWhichTakeThePlaceOfWhoIsLost) {
  for (int i = 0; i < 6; ++i) add(i, "node" + std::to_string(9 - i));
  EXPECT_THAT(formed(), ElementsAre(3, 2, 1, 0));
  EXPECT_FALSE(members.has_room());
  EXPECT_TRUE(members.has_connected_outsider());
  members.remove(id(2));
  EXPECT_TRUE(members.has_room());
  EXPECT_THAT(formed(), ElementsAre(3, 1, 0, 4));
}

TEST_F(MembershipTest, ANodeWithoutAConnectionStaysInItsGroupButDoesNotEnterOne) {
  add(0, "a");
  add(1, "b");
  EXPECT_EQ(members.ready(), 2);
  members.disconnected(id(1), CoreTime{});
  EXPECT_EQ(members.ready(), 1);
  EXPECT_THAT(formed(), ElementsAre(0));
  members.resumed(id(1));
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(0, 1));
  members.disconnected(id(0), CoreTime{});
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(0, 1));
}

TEST_F(MembershipTest, KnowsWhoseConnectionHasBeenBrokenLongest) {
  using namespace std::chrono_literals;
  add(0, "a", 5);
  add(1, "b", 5);
  EXPECT_FALSE(members.longest_broken());
  members.disconnected(id(1), CoreTime(1s));
  members.disconnected(id(0), CoreTime(2s));
  members.disconnected(id(1), CoreTime(3s));  // it was broken already
  EXPECT_EQ(members.longest_broken()->id, id(1));
  EXPECT_EQ(members.broken_claimant(5), id(1));
  members.resumed(id(1));
  EXPECT_EQ(members.longest_broken()->since, CoreTime(2s));
  EXPECT_EQ(members.connected_claimant(5), id(1));
  members.remove(id(0));
  EXPECT_FALSE(members.longest_broken());
  EXPECT_FALSE(members.broken_claimant(5));
}

class LeftOutMembers : public MembershipTest {
 protected:
  LeftOutMembers() { members = Membership(2, 4); }
  void leave_out(int number, Standing standing = Standing::kDrained) {
    members.set_standing(id(number), standing);
  }
};

TEST_F(LeftOutMembers, AreTakenOnlyWhereTheOthersAreFewerThanTheMinimum) {
  for (int i = 0; i < 3; ++i) add(i, "node" + std::to_string(i));
  leave_out(0);
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(1, 2));
  members.remove(id(1));
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(2, 0));
  leave_out(2);
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(2, 0));
  members.remove(id(2));
  EXPECT_EQ(members.ready(), 1);
}

TEST_F(LeftOutMembers, AreNotReadyBeyondTheMinimum) {
  for (int i = 0; i < 4; ++i) add(i, "node" + std::to_string(i));
  for (int i = 0; i < 3; ++i) leave_out(i);
  EXPECT_EQ(members.ready(), 2);
  EXPECT_THAT(formed(), ElementsAre(0, 3)) << "the only fit one, and as many others as are missing";
}

TEST_F(LeftOutMembers, LeaveTheirGroupAndAreOutsidersThen) {
  for (int i = 0; i < 3; ++i) add(i, "node" + std::to_string(i));
  members.form_group();
  EXPECT_THAT(members.to_spare(), IsEmpty());
  leave_out(1);
  EXPECT_THAT(members.to_spare(), Not(IsEmpty()));
  EXPECT_TRUE(members.is_in_group(id(1))) << "until another group is formed";
  const auto change = members.form_group();
  EXPECT_EQ(change.joined, 0);
  EXPECT_THAT(change.left_out, ElementsAre(id(1)));
  EXPECT_FALSE(members.is_in_group(id(1)));
  EXPECT_THAT(members.to_spare(), IsEmpty());
  EXPECT_TRUE(members.has_room());
  EXPECT_FALSE(members.has_connected_outsider()) << "none that may come in";
  leave_out(1, Standing::kFit);
  EXPECT_TRUE(members.has_connected_outsider());
  EXPECT_EQ(members.form_group().joined, 1);
}

TEST_F(LeftOutMembers, StayUnfitOnesBeforeDrainedOnes) {
  for (int i = 0; i < 3; ++i) add(i, "node" + std::to_string(i));
  members.form_group();
  leave_out(0, Standing::kUnfit);
  leave_out(1, Standing::kDrained);
  EXPECT_THAT(members.to_spare(), ElementsAre(id(0)));
  EXPECT_THAT(formed(), ElementsAre(1, 2));
}

TEST_F(LeftOutMembers, AreNotThoseThatAreOnlyBlamedUnlessASpareIsThere) {
  for (int i = 0; i < 4; ++i) add(i, "node" + std::to_string(i));
  members.form_group();
  leave_out(1, Standing::kBlamed);
  EXPECT_EQ(members.ready(), 4);
  EXPECT_THAT(formed(), ElementsAre(0, 1, 2, 3));
  add(4, "node4");
  EXPECT_THAT(members.to_spare(), IsEmpty()) << "no round is stopped for it";
  EXPECT_THAT(formed(), ElementsAre(0, 2, 3, 4));
  members.remove(id(4));
  EXPECT_TRUE(members.has_connected_outsider());
  EXPECT_THAT(formed(), ElementsAre(0, 2, 3, 1));
}

TEST_F(LeftOutMembers, GiveTheirPlaceToASpareAsSoonAsOneIsThere) {
  add(0, "node0");
  add(1, "node1");
  members.form_group();
  leave_out(0);
  EXPECT_THAT(members.to_spare(), IsEmpty());
  add(2, "node2");
  EXPECT_THAT(members.to_spare(), Not(IsEmpty()));
  members.disconnected(id(2), CoreTime{});
  EXPECT_THAT(members.to_spare(), IsEmpty());
  members.resumed(id(2));
  EXPECT_THAT(formed(), ElementsAre(1, 2));
}

}  // namespace
}  // namespace ddprun::rdzv
