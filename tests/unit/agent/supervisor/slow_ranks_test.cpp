// The shell around the rules of rendezvous/round/lag_core.h: ranks that are functions of time, other nodes that are texts, and
// minutes of a fifth of a second.
#include "agent/supervisor/slow_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/limits.h"
#include "tests/support/run_until.h"
#include "tests/unit/agent/output/output_fixture.h"
#include "tests/unit/agent/query/fake_leader.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;
using Place = rdzv::LeaderView::Place;

constexpr nanoseconds kCallTime = 5ms;
constexpr nanoseconds kLate = 3ms;
constexpr int kLooksOfTwoMinutes = 24;
constexpr nanoseconds kOtherClock = 1000s;  // it is so much ahead

nanoseconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

class SlowRanksTest : public ::testing::Test {
 protected:
  struct Peer {
    Place place = Place::kInRound;
    bool is_listed = true;  // by the leader, which leaves out some of very many nodes
    std::function<std::string()> arrivals = {};
    std::function<std::string()> samples = {};
  };
  struct Sampled {
    std::vector<int> ranks;
    StackSamples::Done done;
  };

  SlowRanksTest() {
    job_.local_world_size = 4;
    job_.environment = {{"DDPRUN_TEST_MINUTE_MS", "200"}};
    round_.round = Round{1};
    round_.world_size = 4;
    follower_ = events_.on_line([this](const std::string& line) { lines_.push_back(line); });
  }

  // Ranks 0 and 1 are here, 2 and 3 on the peer.
  void have_two_nodes() {
    job_.local_world_size = 2;
    round_.node_count = 2;
  }

  // With whatever a test has put into the job.
  SlowRanks& slow() {
    if (slow_) return *slow_;
    slow_ = std::make_unique<SlowRanks>(
        AgentParts{loop_, console_, Log(console_, {}), output_, job_, "here", "agent"},
        SlowRanks::Others{{round_, [this] { return is_running_; },
                           [this](std::size_t most) {
                             ++looks_;
                             most_ = most;
                             return ranks_of(0, job_.local_world_size, 0s);
                           },
                           [this](const std::vector<int>& ranks, StackSamples::Done done) {
                             sampled_.push_back({ranks, std::move(done)});
                           }},
                          query_,
                          events_});
    return *slow_;
  }
  void begin() { slow().on({round_.round, worker_event::Started{}}); }

  // A call of all ranks every kCallTime, to which late ones come kLate later.
  std::vector<rdzv::RankArrivals> ranks_of(int first, int count, nanoseconds clock) const {
    constexpr std::int64_t kKept = 100;
    std::vector<rdzv::RankArrivals> ranks;
    const std::int64_t last = (now() - kLate) / kCallTime;
    for (int rank = first; rank < first + count; ++rank) {
      record::GroupArrivals group{
          .id = 7, .size = 4, .rank = static_cast<std::uint32_t>(rank), .entered = 1};
      for (std::int64_t number = last - kKept; number <= last; ++number) {
        const nanoseconds at = number * kCallTime + clock;
        group.calls.push_back({static_cast<std::uint64_t>(number),
                               (at + (rank == late_ ? kLate : 0ns)).count(), (at + kLate).count()});
      }
      ranks.push_back({rank, std::nullopt, {std::move(group)}});
    }
    return ranks;
  }
  std::string arrivals_of_peer(int first, int count) const {
    return to_json(ArrivalsAnswer{now() + kOtherClock, ranks_of(first, count, kOtherClock)},
                   SIZE_MAX);
  }
  Peer honest_peer() {
    return {
        .arrivals = [this] { return arrivals_of_peer(2, 2); },
        .samples =
            [] {
              return to_json(
                  std::vector<RankSamples>{{2, {{"main (train.py:9)\n", 32}}},
                                           {3, {{"load (train.py:4)\nmain (train.py:8)\n", 32}}}},
                  SIZE_MAX);
            }};
  }

  // The others answer what they were asked, and the leader says which these are.
  void answer() {
    for (; answered_ < leader_.asked.size(); ++answered_) {
      const rdzv::PeerRequest question = leader_.asked[answered_];
      rdzv::PeerAck ack{question.id, NodeId{0}, {}};
      ack.view.members.push_back({NodeId{0}, "here", "", 1, 0, Place::kInRound});
      const bool asks_arrivals = arrivals_question_from(question.text).has_value();
      for (const auto& [id, peer] : peers_) {
        if (peer.is_listed) {
          ack.view.members.push_back(
              {NodeId{id}, "b" + std::to_string(id), "", 1, static_cast<int>(id), peer.place});
        }
        const auto& says = asks_arrivals ? peer.arrivals : peer.samples;
        if (says && peer.place == Place::kInRound) {
          query_.take(rdzv::PeerReply{question.id, NodeId{id}, says()});
        }
      }
      query_.take(std::move(ack));
    }
  }
  bool run_until(const std::function<bool()>& condition) {
    return ddprun::run_until(loop_, [&] {
      answer();
      said_ += err_.read_available();
      return condition();
    });
  }
  bool run_until_looked(int times) {
    return run_until([this, until = looks_ + times] { return looks_ >= until; });
  }
  // What is asked of the workers here.
  bool run_until_sampled(std::size_t times) {
    return run_until([this, times] { return sampled_.size() >= times; });
  }
  NodeStatus status() {
    NodeStatus status;
    slow().fill(status);
    return status;
  }

  boost::asio::io_context loop_;
  PipeEnds out_;
  PipeEnds err_;
  Console console_{loop_.get_executor(), {out_.write_end(), err_.write_end()}};
  Job job_;
  Output output_{loop_.get_executor(), console_, job_.output, "job", ""};
  EventLog events_{loop_.get_executor(), console_, job_, "here"};
  std::shared_ptr<void> follower_;
  FakeLeader leader_;
  JobQuery query_{loop_,
                  {"job", "train", "1.0", "here"},
                  {.node_status = [](std::size_t) { return NodeStatus(); },
                   .on_event = [](auto) { return nullptr; },
                   .leader = [this] { return &leader_; }}};
  rdzv::RoundStart round_;
  bool is_running_ = true;
  std::optional<int> late_;
  std::map<std::uint32_t, Peer> peers_;
  std::unique_ptr<SlowRanks> slow_;

  int looks_ = 0;
  std::size_t most_ = 0;
  std::size_t answered_ = 0;
  std::vector<Sampled> sampled_;
  std::vector<std::string> lines_;
  std::string said_;
};

// ---- on one node

TEST_F(SlowRanksTest, ASlowRankIsNamedOnceWithThePlaceWhereItIsSlow) {
  late_ = 2;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  EXPECT_THAT(sampled_[0].ranks, ElementsAre(0, 2)) << "and one that is not slow";
  EXPECT_THAT(lines_, IsEmpty()) << "the place is not known yet";
  sampled_[0].done(
      {{0, {{"main (train.py:9)\n", 32}}}, {2, {{"load (train.py:4)\nmain (train.py:8)\n", 32}}}});
  ASSERT_THAT(lines_, SizeIs(1));
  EXPECT_THAT(lines_[0], HasSubstr(R"("event":"slow")"));
  EXPECT_THAT(lines_[0], HasSubstr(R"("round":1,"rank":2,"on_host":"here")"));
  EXPECT_THAT(lines_[0], HasSubstr(R"-("where":"load (train.py:4)")-"));
  ASSERT_TRUE(run_until_looked(kLooksOfTwoMinutes));
  EXPECT_THAT(lines_, SizeIs(1));
  EXPECT_THAT(sampled_, SizeIs(1));
  ASSERT_THAT(status().slow, SizeIs(1));
  EXPECT_EQ(status().slow[0].rank, 2);
  EXPECT_EQ(status().slow[0].where, "load (train.py:4)");
  const auto warning = said_.find("rank 2 on here comes last in 100 % of calls, 3 ms late");
  ASSERT_NE(warning, said_.npos) << said_;
  EXPECT_EQ(said_.find("comes last", warning + 40), said_.npos);
}

TEST_F(SlowRanksTest, ARankThatIsSlowNoMoreIsNotShown) {
  late_ = 2;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({});
  EXPECT_THAT(lines_, SizeIs(1)) << "also where the place is not known";
  EXPECT_THAT(status().slow, SizeIs(1));
  late_ = std::nullopt;
  ASSERT_TRUE(run_until([this] { return status().slow.empty(); }));
}

TEST_F(SlowRanksTest, NoRankIsNamedWhereAllAreAsFast) {
  begin();
  ASSERT_TRUE(run_until_looked(kLooksOfTwoMinutes));
  EXPECT_THAT(sampled_, IsEmpty());
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_THAT(status().slow, IsEmpty());
  EXPECT_THAT(status().rank_times, SizeIs(4));
  EXPECT_EQ(said_, "");
}

TEST_F(SlowRanksTest, NothingIsLookedAtWhereItIsOff) {
  late_ = 2;
  job_.finds_slow_ranks = false;
  begin();
  EXPECT_EQ(loop_.run_for(1s), 0U) << "nothing to do";
  EXPECT_EQ(looks_, 0);
}

TEST_F(SlowRanksTest, TheFirstNodeAloneLooks) {
  have_two_nodes();
  round_.node_rank = 1;
  begin();
  round_.node_rank = 0;
  round_.world_size = 1;  // nothing to compare it with
  begin();
  EXPECT_EQ(loop_.run_for(1s), 0U) << "nothing to do";
  EXPECT_EQ(looks_, 0);
  EXPECT_THAT(leader_.asked, IsEmpty());
}

TEST_F(SlowRanksTest, WhatIsSaidOfARoundEndsWithIt) {
  late_ = 2;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({});
  EXPECT_THAT(status().slow, SizeIs(1));
  slow().on({round_.round, worker_event::Closed{}});
  EXPECT_THAT(status().slow, IsEmpty());
  EXPECT_THAT(status().rank_times, IsEmpty());
  round_.round = Round{2};
  begin();
  ASSERT_TRUE(run_until_sampled(2)) << "it is named anew";
  round_.round = Round{3};
  begin();
  sampled_[1].done({});
  EXPECT_THAT(lines_, SizeIs(1)) << "of a round that is over nothing is said";
  ASSERT_TRUE(run_until_sampled(3));
  sampled_[2].done({});
  ASSERT_THAT(lines_, SizeIs(2));
  EXPECT_THAT(lines_[1], HasSubstr(R"("round":3,"rank":2)"));
}

TEST_F(SlowRanksTest, NothingIsSaidOnceTheAgentStopsInTheMiddleOfALook) {
  late_ = 2;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  slow_.reset();
  sampled_[0].done({});
  EXPECT_THAT(lines_, IsEmpty());
  const int looks = looks_;
  loop_.restart();
  loop_.run_for(1s);  // there is nothing to wait for
  EXPECT_EQ(looks_, looks);
}

// ---- on several nodes

TEST_F(SlowRanksTest, ARankOfAnotherNodeIsNamedWithItsHost) {
  have_two_nodes();
  peers_[1] = honest_peer();
  late_ = 3;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({{0, {{"main (train.py:9)\n", 32}}}});
  ASSERT_TRUE(run_until([this] { return !lines_.empty(); }));
  EXPECT_THAT(lines_[0], HasSubstr(R"("rank":3,"on_host":"b1")"));
  EXPECT_THAT(lines_[0], HasSubstr(R"-("where":"load (train.py:4)")-"));
  EXPECT_THAT(status().rank_times, SizeIs(4));
}

TEST_F(SlowRanksTest, ANodeThatTheLeaderDoesNotListHasNoName) {
  have_two_nodes();
  peers_[1] = honest_peer();
  peers_[1].is_listed = false;
  late_ = 3;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({});
  ASSERT_TRUE(run_until([this] { return !lines_.empty(); }));
  EXPECT_THAT(lines_[0], HasSubstr(R"("rank":3,"on_host":"another node")"));
}

TEST_F(SlowRanksTest, NoRankIsNamedWhereANodeIsMissing) {
  have_two_nodes();
  peers_[1] = honest_peer();
  peers_[1].place = Place::kDisconnected;
  late_ = 1;
  begin();
  ASSERT_TRUE(run_until_looked(kLooksOfTwoMinutes));
  EXPECT_THAT(sampled_, IsEmpty());
  peers_[1].place = Place::kInRound;
  ASSERT_TRUE(run_until_sampled(1)) << "it is there again";
}

// An answer may come from anything that has joined the job.
TEST_F(SlowRanksTest, AnswersThatMakeNoSenseAreLeftOut) {
  have_two_nodes();
  int number = 0;
  peers_[1].arrivals = [this, &number]() -> std::string {
    switch (++number % 6) {
      case 0:
        return "";
      case 1:
        return "{\"now_us\":1,\"ranks\":[{}]}";
      case 2:
        return "[[[[";
      case 3:
        return R"({"now_us":-9223372036854775808,"ranks":[{"rank":-2147483648,"steps":null,"groups":[]}]})";
      case 4:
        return arrivals_of_peer(INT_MAX - 1, 1);
      default:
        return arrivals_of_peer(0, 2);  // which are here
    }
  };
  const std::string count = std::to_string(INT_MAX);
  const std::string seen = R"({"frames":"evil (evil.py:1)\n","count":)" + count + "}";
  peers_[1].samples = [seen] {
    return R"([{"rank":3,"stacks":[)" + seen + "," + seen + R"(]},{"rank":0,"stacks":[)" + seen +
           "]}]";
  };
  peers_[2] = honest_peer();
  late_ = 3;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({{0, {{"main (train.py:9)\n", 32}}}});
  ASSERT_TRUE(run_until([this] { return !lines_.empty(); }));
  EXPECT_THAT(lines_[0], HasSubstr(R"("rank":3,"on_host":"b2")"));
  EXPECT_THAT(lines_[0], HasSubstr(R"-("where":"load (train.py:4)")-"));
}

TEST_F(SlowRanksTest, AnotherNodeDoesNotSpeakForRanksOfThisOne) {
  have_two_nodes();
  peers_[1].arrivals = [this] { return arrivals_of_peer(0, 2); };
  peers_[1].samples = [] { return "[]"; };
  peers_[2] = honest_peer();
  late_ = 1;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  sampled_[0].done({});
  ASSERT_TRUE(run_until([this] { return !lines_.empty(); }));
  EXPECT_THAT(lines_[0], HasSubstr(R"("rank":1,"on_host":"here")"));
}

// Its agent ends while another node looks.
TEST_F(SlowRanksTest, AnswersThatComeAfterTheEndAreNotUsed) {
  have_two_nodes();
  peers_[1] = honest_peer();
  peers_[1].samples = nullptr;
  late_ = 3;
  begin();
  ASSERT_TRUE(run_until_sampled(1));
  const auto question = std::ranges::find_if(leader_.asked, [](const rdzv::PeerRequest& each) {
    return samples_question_from(each.text).has_value();
  });
  ASSERT_NE(question, leader_.asked.end());
  const std::uint64_t id = question->id;
  sampled_[0].done({});
  slow_.reset();
  query_.take(rdzv::PeerReply{id, NodeId{1}, honest_peer().samples()});
  EXPECT_THAT(lines_, IsEmpty());
}

// ---- what others ask

class SlowRanksAsked : public SlowRanksTest {
 protected:
  SlowRanksAsked() {
    have_two_nodes();
    round_.node_rank = 1;
    round_.rank_offset = 2;
    begin();
  }
  void ask(const std::string& question) { query_.take(rdzv::PeerRequest{7, NodeId{0}, question}); }
  ArrivalsAnswer arrivals() const {
    return arrivals_answer_from(leader_.answered.at(0).text).value();
  }
};

TEST_F(SlowRanksAsked, TheFirstNodeIsToldWhenRanksCameToTheirCalls) {
  ask(to_json(ArrivalsQuestion{Round{1}, 1'000'000'000}));
  EXPECT_THAT(arrivals().ranks, SizeIs(2));
  EXPECT_LE(most_, 1024U);
}

TEST_F(SlowRanksAsked, NothingIsToldOfAnotherRound) {
  ask(to_json(ArrivalsQuestion{Round{2}, 16}));
  EXPECT_THAT(arrivals().ranks, IsEmpty());
  EXPECT_GT(arrivals().now, 0s);
  ask(to_json(SamplesQuestion{Round{2}, {2}}));
  EXPECT_THAT(sampled_.at(0).ranks, IsEmpty());
}

TEST_F(SlowRanksAsked, NothingIsToldOfARoundThatStops) {
  is_running_ = false;
  ask(to_json(ArrivalsQuestion{Round{1}, 16}));
  EXPECT_THAT(arrivals().ranks, IsEmpty());
  ask(to_json(SamplesQuestion{Round{1}, {2}}));
  EXPECT_THAT(sampled_.at(0).ranks, IsEmpty());
}

TEST_F(SlowRanksAsked, AQuestionThatMakesNoSenseHasAnEmptyAnswer) {
  ask(R"({"ask":"arrivals","round":1,"calls":-1})");
  EXPECT_THAT(arrivals().ranks, IsEmpty());
  ask(R"({"ask":"samples","round":1,"ranks":["a"]})");
  EXPECT_THAT(sampled_.at(0).ranks, IsEmpty());
}

TEST_F(SlowRanksAsked, AQuestionAfterTheEndHasNoAnswer) {
  slow_.reset();
  ask(to_json(ArrivalsQuestion{Round{1}, 16}));
  ask(to_json(SamplesQuestion{Round{1}, {2}}));
  EXPECT_THAT(leader_.answered, IsEmpty());
  EXPECT_THAT(sampled_, IsEmpty());
}

// The leader would end the connection of a node that says more.
TEST_F(SlowRanksAsked, StacksAreToldAsFarAsAnAnswerMayBeLong) {
  ask(to_json(SamplesQuestion{Round{1}, {2, 3}}));
  EXPECT_THAT(sampled_.at(0).ranks, ElementsAre(2, 3));
  RankSamples many{2, {}};
  for (int i = 0; i < 20; ++i) {
    many.stacks.push_back({std::string(100'000, static_cast<char>('a' + i)) + "\n", i + 1});
  }
  sampled_[0].done({many, {3, {{"main (train.py:9)\n", 32}}}});
  ASSERT_THAT(leader_.answered, SizeIs(1));
  EXPECT_THAT(leader_.answered[0].text, SizeIs(Le(rdzv::limits::kMaxAnswerBytes)));
  const auto read = samples_from(leader_.answered[0].text).value();
  ASSERT_THAT(read, SizeIs(2));
  ASSERT_FALSE(read[0].stacks.empty());
  EXPECT_EQ(read[0].stacks[0].count, 20) << "the one that was seen most";
}

}  // namespace
}  // namespace ddprun::agent
