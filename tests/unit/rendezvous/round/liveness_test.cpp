#include "rendezvous/round/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr NodeId kA{1};
constexpr NodeId kB{2};

TEST(Liveness, NamesOnceWhoWasSilentForTooLong) {
  Liveness liveness({});
  liveness.heard(kA, CoreTime(0s));
  liveness.heard(kB, CoreTime(0s));
  for (const auto now : {2s, 4s}) {
    liveness.heard(kB, CoreTime(now));
    EXPECT_THAT(liveness.take_silent(CoreTime(now)), IsEmpty());
  }
  EXPECT_THAT(liveness.take_silent(CoreTime(6s)), ElementsAre(kA));
  EXPECT_THAT(liveness.take_silent(CoreTime(8s)), IsEmpty());
  liveness.forget(kB);
  EXPECT_THAT(liveness.take_silent(CoreTime(10s)), IsEmpty());
}

TEST(Liveness, KnowsWhenTheNextOneIsDue) {
  Liveness liveness({});
  EXPECT_EQ(liveness.next_silent_at(), std::nullopt);
  liveness.heard(kA, CoreTime(1s));
  liveness.heard(kB, CoreTime(2s));
  EXPECT_EQ(liveness.next_silent_at(), CoreTime(7s));
  liveness.heard(kA, CoreTime(3s));
  EXPECT_EQ(liveness.next_silent_at(), CoreTime(8s));
}

TEST(Liveness, DoesNotTakeItsOwnPauseForTheSilenceOfOthers) {
  Liveness liveness({});
  liveness.heard(kA, CoreTime(0s));
  EXPECT_THAT(liveness.take_silent(CoreTime(2s)), IsEmpty());
  EXPECT_THAT(liveness.take_silent(CoreTime(100s)), IsEmpty());
  EXPECT_THAT(liveness.take_silent(CoreTime(103s)), IsEmpty());
  EXPECT_THAT(liveness.take_silent(CoreTime(106s)), ElementsAre(kA));
}

TEST(LeaderLiveness, ABrokenConnectionHasTheGraceAndASilentOneTheTimeout) {
  LeaderLiveness leader({});
  leader.heard(CoreTime(1s));
  EXPECT_EQ(leader.lost_at(), CoreTime(7s));
  leader.broke(CoreTime(2s));
  leader.broke(CoreTime(3s));
  EXPECT_EQ(leader.lost_at(), CoreTime(2300ms));
  EXPECT_TRUE(leader.is_lost(CoreTime(2300ms)));
  leader.heard(CoreTime(2301ms));
  EXPECT_FALSE(leader.is_lost(CoreTime(2302ms)));
}

TEST(LeaderLiveness, DoesNotTakeItsOwnPauseForTheSilenceOfTheLeader) {
  LeaderLiveness leader({});
  leader.heard(CoreTime(0s));
  EXPECT_FALSE(leader.is_lost(CoreTime(2s)));
  EXPECT_FALSE(leader.is_lost(CoreTime(60s)));
  EXPECT_FALSE(leader.is_lost(CoreTime(63s)));
  EXPECT_TRUE(leader.is_lost(CoreTime(66s)));
}

}  // namespace
}  // namespace ddprun::rdzv
