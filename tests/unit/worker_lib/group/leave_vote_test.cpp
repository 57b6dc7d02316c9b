#include "worker_lib/group/leave_vote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <limits>
#include <random>
#include <thread>
#include <vector>

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using Ballot = LeaveVote::Ballot;

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
const LeaveVote::Agree kAlone = [](Ballot ballot) { return ballot; };

// A collective between threads.
class Group {
 public:
  explicit Group(int ranks)
      : ballots_(static_cast<std::size_t>(ranks)), all_there_(ranks), all_read_(ranks) {}

  Ballot agree(int rank, Ballot mine) {
    ballots_[static_cast<std::size_t>(rank)] = mine;
    all_there_.arrive_and_wait();
    Ballot least = mine;
    for (const Ballot& other : ballots_) {
      for (std::size_t i = 0; i < least.size(); ++i) least[i] = std::min(least[i], other[i]);
    }
    all_read_.arrive_and_wait();
    return least;
  }

 private:
  std::vector<Ballot> ballots_;
  std::barrier<> all_there_;
  std::barrier<> all_read_;
};

// The calls at which the ranks left; each is told at the call given for it, or never.
std::vector<int> calls_when_left(const std::vector<int>& told_at, int calls,
                                 const std::vector<bool>& have_link) {
  const int ranks = static_cast<int>(told_at.size());
  Group group(ranks);
  std::vector<int> left_at(told_at.size(), -1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto index = static_cast<std::size_t>(rank);
      LeaveVote vote(have_link[index]);
      for (int call = 0; call < calls && left_at[index] < 0; ++call) {
        const bool leaves = vote.should_leave([&] { return call >= told_at[index]; },
                                              [&](Ballot mine) { return group.agree(rank, mine); });
        if (leaves) left_at[index] = call;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return left_at;
}

TEST(LeaveVote, AllRanksLeaveAtTheSameCallWhoeverWasToldAndWhen) {
  constexpr int kNotTold = 1'000'000;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<int> told_at(1 + random() % 4, kNotTold);
    for (int& call : told_at) {
      if (random() % 2 == 0) call = static_cast<int>(random() % 200);
    }
    const int first = *std::min_element(told_at.begin(), told_at.end());
    const auto left_at = calls_when_left(told_at, 5000, std::vector<bool>(told_at.size(), true));
    EXPECT_THAT(left_at, Each(left_at.front()));
    if (first == kNotTold) {
      EXPECT_EQ(left_at.front(), -1);
    } else {
      EXPECT_GE(left_at.front(), first);
      EXPECT_LE(left_at.front(), first + LeaveVote::kCallsMax);
    }
  }
}

TEST(LeaveVote, ARankWithoutALinkLeavesWithTheOthers) {
  const auto left_at = calls_when_left({1'000'000, 3}, 100, {false, true});
  EXPECT_THAT(left_at, Each(left_at.front()));
  EXPECT_GE(left_at.front(), 3);
}

TEST(LeaveVote, IsHeldOnceAndNeverAgainWhereNobodyHasALink) {
  LeaveVote vote(/*may_be_told=*/false);
  int votes = 0;
  for (int call = 0; call < 100'000; ++call) {
    EXPECT_FALSE(
        vote.should_leave([] { return false; }, [&](Ballot ballot) { return ++votes, ballot; }));
  }
  EXPECT_EQ(votes, 1);
  EXPECT_GT(vote.calls_until_vote(), kNever / 2);
}

TEST(LeaveVote, StaysDecidedWithoutAnotherVote) {
  LeaveVote vote(/*may_be_told=*/true);
  const auto is_told = [] { return true; };
  EXPECT_TRUE(vote.should_leave(is_told, kAlone));
  EXPECT_TRUE(vote.should_leave(is_told, [](Ballot ballot) {
    ADD_FAILURE() << "others have left";
    return ballot;
  }));
}

// Votes at this pace, as the calls from each to the next.
std::vector<std::int64_t> intervals(LeaveVote::Clock::duration per_call, int votes) {
  LeaveVote vote(/*may_be_told=*/true);
  LeaveVote::Clock::time_point now{};
  std::vector<std::int64_t> found;
  for (int i = 0; i < votes; ++i) {
    EXPECT_FALSE(vote.vote(false, kAlone, now));
    found.push_back(vote.calls_until_vote());
    now += per_call * found.back();
  }
  return found;
}

TEST(LeaveVote, ComesAboutTwiceASecondAndNeverAfterMoreThanTheMostCalls) {
  EXPECT_EQ(intervals(10ms, 10), (std::vector<std::int64_t>{1, 8, 50, 50, 50, 50, 50, 50, 50, 50}));
  EXPECT_THAT(intervals(3s, 5), Each(1));
  EXPECT_EQ(intervals(1us, 20).back(), LeaveVote::kCallsMax);
  EXPECT_EQ(intervals(0us, 20).back(), LeaveVote::kCallsMax);
}

}  // namespace
}  // namespace ddprun
