#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/etcd/leader_claims.h"
#include "rendezvous/etcd/leadership_core.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = RecordWrite::Kind;
using Out = LeadershipCore::Out;

template <typename Action>
const Action* only(const Out& out) {
  return out.size() == 1 ? std::get_if<Action>(&out.front()) : nullptr;
}

// A leader of a job of two nodes, over a RoundCore that is about to begin a round.
class Leadership : public ::testing::Test {
 protected:
  Leadership() : rounds_(config()) {
    core_.begin(now_, record_);
    for (const std::uint32_t id : {1U, 2U}) {
      NodeHello hello;
      hello.max_nodes = 2;
      core_.pass(rounds_, rounds_.step(now_, NodeId{id}, hello));
    }
  }

  static RoundConfig config() {
    RoundConfig config;
    config.max_nodes = 2;
    config.own_node.reset();
    return config;
  }

  // The round's RoundStarts are held, and its record is being written.
  WriteRecord begin_round() {
    EXPECT_THAT(core_.pass(rounds_, rounds_.step(now_, NodeId{1}, StoreOpened{Round{0}, 1})),
                IsEmpty());
    const Out out = core_.go_on();
    EXPECT_NE(only<WriteRecord>(out), nullptr);
    return *only<WriteRecord>(out);
  }

  Out tick(CoreTime::duration after) {
    now_ += after;
    return core_.tick(now_, rounds_.is_deserted());
  }

  CoreTime now_{1s};
  JobRecord record_ = JobRecord{"i", {}, 0, {}, {}};
  RoundCore rounds_;
  LeadershipCore core_{6s};
};

TEST_F(Leadership, MessagesAreSaidWhenTheirRecordIsWritten) {
  const WriteRecord write = begin_round();
  EXPECT_EQ(write.record.round, Round{0});
  EXPECT_TRUE(core_.is_holding());
  EXPECT_THAT(core_.go_on(), IsEmpty()) << "one write at a time";
  const Out out = core_.written(now_, write.term, Kind::kWritten);
  const auto* say = only<SayToNodes>(out);
  ASSERT_NE(say, nullptr);
  EXPECT_THAT(say->messages, SizeIs(2));
  EXPECT_FALSE(say->is_holding);
}

TEST_F(Leadership, AWriteThatAnEarlierOneOvertookIsWrittenAgain) {
  const WriteRecord write = begin_round();
  const Out out = core_.written(now_, write.term, Kind::kOvertaken);
  ASSERT_NE(only<WriteRecord>(out), nullptr);
  EXPECT_EQ(only<WriteRecord>(out)->record, write.record);
}

TEST_F(Leadership, AFencedWriteSaysNothingAndDoubts) {
  const WriteRecord write = begin_round();
  EXPECT_NE(only<DoubtLeadership>(core_.written(now_, write.term, Kind::kFenced)), nullptr);
  EXPECT_TRUE(core_.is_holding());
  EXPECT_NE(only<WriteRecord>(tick(100ms)), nullptr) << "it may lead again by then";
}

TEST_F(Leadership, AWriteWithoutAnAnswerIsWrittenAgainAndToldSeldom) {
  WriteRecord write = begin_round();
  EXPECT_NE(only<WaitsForEtcd>(core_.not_written(now_, write.term, "away", false)), nullptr);
  EXPECT_THAT(core_.go_on(), IsEmpty()) << "not before the pause is over";
  const Out again = tick(100ms);
  ASSERT_NE(only<WriteRecord>(again), nullptr);
  EXPECT_THAT(core_.not_written(now_, write.term, "away", false), IsEmpty());
}

TEST_F(Leadership, ARecordWhoseLeaseIsOverGetsAnotherOne) {
  const WriteRecord write = begin_round();
  EXPECT_NE(only<RenewRecordLease>(core_.not_written(now_, write.term, "", true)), nullptr);
  EXPECT_NE(only<WriteRecord>(core_.record_lease(now_, write.term, "")), nullptr);
}

TEST_F(Leadership, AnswersOfAnEarlierTermAreIgnored) {
  const WriteRecord write = begin_round();
  core_.stop();
  core_.begin(now_, record_);
  EXPECT_FALSE(core_.is_current(write.term));
  EXPECT_THAT(core_.written(now_, write.term, Kind::kWritten), IsEmpty());
  EXPECT_THAT(core_.not_written(now_, write.term, "", true), IsEmpty());
  EXPECT_THAT(core_.record_lease(now_, write.term, ""), IsEmpty());
}

TEST_F(Leadership, LeasesAreKeptEachThirdOfTheirTime) {
  EXPECT_THAT(tick(1999ms), IsEmpty());
  const Out out = tick(1ms);
  ASSERT_NE(only<KeepLeases>(out), nullptr);
  EXPECT_FALSE(only<KeepLeases>(out)->with_record);
  EXPECT_EQ(core_.deadline(), now_ + 2s);
  const Out later = tick(15min);
  ASSERT_NE(only<KeepLeases>(later), nullptr);
  EXPECT_TRUE(only<KeepLeases>(later)->with_record);
  EXPECT_NE(only<DoubtLeadership>(core_.leaders_lease_over()), nullptr);
}

TEST_F(Leadership, ALeaderThatLeavesHandsOverAfterAPauseInWhichNoRoundBegins) {
  core_.leave(now_, NodeLeaving{15, false});
  EXPECT_THAT(core_.pass(rounds_, rounds_.step(now_, NodeId{1}, StoreOpened{Round{0}, 1})),
              IsEmpty());
  EXPECT_THAT(core_.go_on(), IsEmpty());
  EXPECT_THAT(core_.done(now_, /*is_deserted=*/false, /*was_everyone_told=*/true), IsEmpty());
  EXPECT_NE(only<LetGoOfLease>(tick(300ms)), nullptr);
  EXPECT_TRUE(core_.is_ending());
  EXPECT_NE(only<StopServing>(core_.let_go()), nullptr);
  EXPECT_TRUE(core_.has_let_go());
}

TEST_F(Leadership, AJobThatAllNodesHaveLeftEndsWithItsRecord) {
  core_.leave(now_, NodeLeaving{15, false});
  const Out out = core_.done(now_, /*is_deserted=*/true, /*was_everyone_told=*/false);
  const auto* write = only<WriteRecord>(out);
  ASSERT_NE(write, nullptr);
  ASSERT_TRUE(write->record.outcome);
  EXPECT_EQ(write->record.outcome->kind, JobOutcome::Kind::kStopped);
  EXPECT_EQ(write->record.outcome->exit_code, 128 + 15);
  EXPECT_NE(only<WriteRecord>(core_.written(now_, write->term, Kind::kOvertaken)), nullptr);
  EXPECT_NE(only<LetGoOfLease>(core_.written(now_, write->term, Kind::kWritten)), nullptr);
}

TEST_F(Leadership, EtcdIsNotWaitedForAtTheEnd) {
  EXPECT_THAT(core_.done(now_, true, /*was_everyone_told=*/false), IsEmpty());
  EXPECT_NE(only<LetGoOfLease>(core_.done(now_, true, /*was_everyone_told=*/true)), nullptr);
  EXPECT_THAT(core_.done(now_, true, true), IsEmpty()) << "once";
  EXPECT_NE(only<StopServing>(tick(300ms)), nullptr);
  EXPECT_TRUE(core_.has_let_go());
  EXPECT_EQ(core_.deadline(), std::nullopt);
  EXPECT_THAT(core_.let_go(), IsEmpty());
  EXPECT_THAT(tick(1h), IsEmpty());
}

TEST(Leases, OfAClaimAreOneForTheRecordAndOneForTheLeader) {
  ClaimLeases leases;
  leases.begin(/*leads=*/false);
  EXPECT_EQ(leases.need(), ClaimLeases::Need::kRecord);
  leases.granted(7);
  EXPECT_EQ(leases.need(), ClaimLeases::Need::kLeader);
  leases.granted(8);
  EXPECT_EQ(leases.need(), ClaimLeases::Need::kNothing);
  const JobLeases claimed = leases.claim();
  EXPECT_EQ(claimed.leader, 8);
  EXPECT_EQ(claimed.job, 7);
  // Who leads claims again with another lease for its leadership, and no longer one.
  leases.begin(/*leads=*/true);
  EXPECT_EQ(leases.need(), ClaimLeases::Need::kLeader);
  leases.granted(9);
  EXPECT_EQ(leases.claim().leader, 9);
  EXPECT_EQ(leases.held().job, 7);
}

TEST(Leases, OfAClaimThatHadWonAreKept) {
  ClaimLeases leases;
  EXPECT_FALSE(ClaimLeases::is_of_no_use({8, 7}, JobLeases{8, 7}));
  EXPECT_TRUE(ClaimLeases::is_of_no_use({8, 7}, JobLeases{6, 5})) << "it won with another claim";
  EXPECT_TRUE(ClaimLeases::is_of_no_use({8, 7}, std::nullopt));
  leases.seen(JobLeases{6, 5});
  leases.seen(std::nullopt);
  EXPECT_EQ(leases.held().leader, 6);
}

}  // namespace
}  // namespace ddprun::rdzv
