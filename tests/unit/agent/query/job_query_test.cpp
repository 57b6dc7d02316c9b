// How an agent puts the status of its job together from what the leader and other nodes answer.
#include "agent/query/job_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>

#include "rendezvous/common/limits.h"
#include "tests/unit/agent/query/fake_leader.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using rdzv::LeaderView;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

NodeStatus node(const std::string& host, int node_rank) {
  NodeStatus status;
  status.host = host;
  status.round = Round{1};
  status.node_rank = node_rank;
  return status;
}

class Inquiry : public ::testing::Test {
 protected:
  Inquiry()
      : query(io, {"job", "train", "1.0", "here"},
              {.node_status = [](std::size_t) { return node("here", 1); },
               .on_event = [](auto) { return nullptr; },
               .leader = [this] { return has_leader ? &leader : nullptr; }}) {}

  // Of nodes 0 (here), 1, 2 … at these places.
  void leader_says(std::vector<LeaderView::Place> places) {
    rdzv::PeerAck asked{leader.asked.back().id, NodeId{0}, {}};
    asked.view.state = LeaderView::State::kRunning;
    asked.view.max_nodes = 4;
    asked.view.ready = static_cast<int>(places.size());
    for (std::uint32_t id = 0; id < places.size(); ++id) {
      asked.view.members.push_back(
          {NodeId{id}, "b" + std::to_string(id), "", 1, static_cast<int>(id), places[id]});
    }
    query.take(std::move(asked));
  }
  void node_says(std::uint32_t id, const std::string& text) {
    query.take(rdzv::PeerReply{leader.asked.back().id, NodeId{id}, text});
  }
  void ask() {
    query.job_status([this](JobStatus status) { statuses.push_back(std::move(status)); });
  }

  boost::asio::io_context io{1};
  FakeLeader leader;
  bool has_leader = true;
  JobQuery query;
  std::vector<JobStatus> statuses;
};

constexpr auto kIn = LeaderView::Place::kInRound;

TEST_F(Inquiry, IsOverWhenAllWhoWereAskedHaveAnswered) {
  ask();
  EXPECT_EQ(leader.asked.at(0).text, R"({"ask":"status"})");
  node_says(2, to_json(node("b2", 2)));  // before the leader's own
  leader_says({kIn, kIn, kIn});
  EXPECT_THAT(statuses, IsEmpty());
  node_says(1, to_json(node("b1", 0)));
  ASSERT_THAT(statuses, SizeIs(1));
  const JobStatus& status = statuses[0];
  EXPECT_EQ(status.run_id, "job");
  EXPECT_EQ(status.leader->missing, 1);
  EXPECT_THAT(status.late, IsEmpty());
  ASSERT_THAT(status.nodes, SizeIs(3));
  EXPECT_EQ(status.nodes[0].host, "b1") << "by rank";
  EXPECT_EQ(status.nodes[1].host, "here");
  EXPECT_EQ(status.nodes[2].host, "b2");
}

TEST_F(Inquiry, WaitsForNobodyLongerThanItsPatience) {
  ask();
  leader_says({kIn, kIn, kIn, LeaderView::Place::kDisconnected});
  node_says(1, "no status");
  const auto began = std::chrono::steady_clock::now();
  io.run();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  ASSERT_THAT(statuses, SizeIs(1));
  ASSERT_THAT(statuses[0].late, SizeIs(3));
  EXPECT_THAT(statuses[0].late[0].why, HasSubstr("cannot be read"));
  EXPECT_THAT(statuses[0].late[1].why, HasSubstr("no answer within 90 ms"));
  EXPECT_EQ(statuses[0].late[2].why, "its connection is broken");
  EXPECT_THAT(statuses[0].nodes, SizeIs(1));
  node_says(2, to_json(node("b2", 2)));  // too late
  EXPECT_THAT(statuses, SizeIs(1));
}

TEST_F(Inquiry, ThoseWhoAskTogetherShareAnAnswer) {
  ask();
  ask();
  EXPECT_THAT(leader.asked, SizeIs(1));
  leader_says({kIn});
  EXPECT_THAT(statuses, SizeIs(2));
  ask();
  EXPECT_THAT(leader.asked, SizeIs(2));
}

TEST_F(Inquiry, WithoutALeaderThisNodeIsAllThereIs) {
  has_leader = false;
  ask();
  EXPECT_THAT(statuses, IsEmpty()) << "not from within the call";
  io.run();
  ASSERT_THAT(statuses, SizeIs(1));
  EXPECT_FALSE(statuses[0].leader);
  EXPECT_THAT(statuses[0].nodes, SizeIs(1));
}

TEST_F(Inquiry, AnswersOthersAndKeepsWithinTheirBounds) {
  query.take(rdzv::PeerRequest{7, NodeId{3}, R"({"ask":"status"})"});
  ASSERT_THAT(leader.answered, SizeIs(1));
  EXPECT_EQ(leader.answered[0].id, 7U);
  EXPECT_EQ(leader.answered[0].peer, NodeId{3});
  EXPECT_EQ(node_status_from(leader.answered[0].text).value(), node("here", 1));
  for (const char* text : {R"({"ask":"dance"})", "garbage", "[]", R"({"ask":1})"}) {
    query.take(rdzv::PeerRequest{8, NodeId{3}, text});
    EXPECT_THAT(leader.answered.back().text, HasSubstr("error"));
  }
}

TEST_F(Inquiry, AQuestionOfNobodyIsNotAnswered) {
  query.take(rdzv::PeerRequest{7, std::nullopt, R"({"ask":"status"})"});
  EXPECT_THAT(leader.answered, IsEmpty());
}

TEST_F(Inquiry, AJobOfImpossibleSizeHasFewMissingRanks) {
  ask();
  rdzv::PeerAck asked{leader.asked.back().id, NodeId{0}, {}};
  asked.view.has_exact_ranks = true;
  asked.view.max_nodes = INT32_MAX;
  query.take(std::move(asked));
  ASSERT_THAT(statuses, SizeIs(1));
  EXPECT_LE(statuses[0].leader->missing_ranks.size(), 4096U);
}

TEST(NodeStatusWithin, LeavesOutEventsAndThenTheLastWorkers) {
  NodeStatus large = node("here", 1);
  large.workers.resize(10'000);
  large.events.assign(kEventsKept, R"({"event":")" + std::string(10'000, 'x') + R"("})");
  const std::string text = to_json_within(large, rdzv::limits::kMaxAnswerBytes);
  EXPECT_LE(text.size(), rdzv::limits::kMaxAnswerBytes);
  const auto read = node_status_from(text);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_GT(read->workers.size(), 1'000U);
  EXPECT_EQ(read->workers.size() + static_cast<std::size_t>(read->workers_left_out), 10'000U);
}

}  // namespace
}  // namespace ddprun::agent
