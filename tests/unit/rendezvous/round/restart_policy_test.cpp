#include "rendezvous/round/restart_policy.h"

#include <gtest/gtest.h>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

RestartRules with_budget(int max_restarts) {
  RestartRules rules;
  rules.max_restarts = max_restarts;
  return rules;
}
RestartPolicy::RoundEnd failed_after(std::chrono::milliseconds uptime) {
  return {true, false, uptime};
}
RestartPolicy::RoundEnd lost_after(std::chrono::milliseconds uptime) {
  return {false, true, uptime};
}

WorkerFailure exited(int code) {
  WorkerFailure failure;
  failure.status = ExitStatus::exited(code);
  return failure;
}

TEST(RestartPolicy, AllowsAsManyRetriesAsTheBudgetHas) {
  RestartPolicy policy(with_budget(2));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(policy.allows_retry(exited(1), 0s));
    EXPECT_EQ(policy.round_ended(failed_after(1s)), 0ms);
  }
  EXPECT_FALSE(policy.allows_retry(exited(1), 0s));
  EXPECT_EQ(policy.restarts(), 2);
}

TEST(RestartPolicy, AReplacementIsChargedOnceEvenIfARestartFollows) {
  RestartRules rules = with_budget(3);
  rules.pause_after_failure = {1s, 8s};
  RestartPolicy policy(rules);
  policy.replaced();
  EXPECT_EQ(policy.restarts(), 1);
  EXPECT_EQ(policy.history().quick_failures, 0) << "no pause follows";
  RestartPolicy::RoundEnd end = failed_after(1s);
  end.is_paid = true;
  EXPECT_EQ(policy.round_ended(end), 1s);
  EXPECT_EQ(policy.restarts(), 1);
}

TEST(RestartPolicy, ALossCostsNothing) {
  RestartPolicy policy(with_budget(1));
  policy.round_ended(lost_after(1h));
  EXPECT_EQ(policy.restarts(), 0);
}

TEST(RestartPolicy, SomeFailuresAreNotWorthARetry) {
  RestartRules rules;
  rules.max_restarts = 5;
  rules.min_uptime = 10s;
  rules.final_exit_codes = {3, 128 + 11};
  const RestartPolicy policy(rules);
  EXPECT_TRUE(policy.allows_retry(exited(1), 10s));
  EXPECT_FALSE(policy.allows_retry(exited(1), 9s));
  EXPECT_FALSE(policy.allows_retry(exited(3), 10s));
  WorkerFailure crash;
  crash.status = ExitStatus::killed(11, true);
  EXPECT_FALSE(policy.allows_retry(crash, 10s));
  WorkerFailure no_program = exited(127);
  no_program.is_worth_a_retry = false;
  EXPECT_FALSE(policy.allows_retry(no_program, 10s));
}

TEST(RestartPolicy, QuickLossesAreFollowedByPausesThatGrowUntilARoundHolds) {
  RestartPolicy policy({});
  for (const auto pause : {0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    EXPECT_EQ(policy.round_ended(lost_after(9s)), pause);
  }
  EXPECT_EQ(policy.round_ended(lost_after(10s)), 0s);
  EXPECT_EQ(policy.round_ended(lost_after(9s)), 0s);
  EXPECT_EQ(policy.round_ended(lost_after(9s)), 1s);
}

TEST(RestartPolicy, TheLongerOfTwoPausesCounts) {
  RestartRules rules;
  rules.max_restarts = 5;
  rules.pause_after_failure = {5s, 20s};
  RestartPolicy policy(rules);
  EXPECT_EQ(policy.round_ended({true, true, 1s}), 5s);
  EXPECT_EQ(policy.round_ended({true, true, 1s}), 10s);
}

TEST(Backoff, DoublesUpToItsMaximum) {
  EXPECT_EQ((Backoff{}).nth(3), 0ms);
  EXPECT_EQ((Backoff{3s, 10s}).nth(0), 0ms);
  EXPECT_EQ((Backoff{3s, 10s}).nth(1), 3s);
  EXPECT_EQ((Backoff{3s, 10s}).nth(2), 6s);
  EXPECT_EQ((Backoff{3s, 10s}).nth(3), 10s);
  EXPECT_EQ((Backoff{3s, 10s}).nth(1'000'000), 10s);
}

}  // namespace
}  // namespace ddprun::rdzv
