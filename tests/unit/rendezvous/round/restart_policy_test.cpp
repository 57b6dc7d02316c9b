#include "rendezvous/round/restart_policy.h"

#include <gtest/gtest.h>

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr CoreTime kNow{1000s};

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
    EXPECT_TRUE(policy.allows_retry(exited(1), 0s, kNow));
    EXPECT_EQ(policy.round_ended(failed_after(1s), kNow), 0ms);
  }
  EXPECT_FALSE(policy.allows_retry(exited(1), 0s, kNow));
  EXPECT_EQ(policy.restarts(kNow), 2);
}

TEST(RestartPolicy, AReplacementIsChargedOnceEvenIfARestartFollows) {
  RestartRules rules = with_budget(3);
  rules.pause_after_failure = {1s, 8s};
  RestartPolicy policy(rules);
  policy.replaced(kNow);
  EXPECT_EQ(policy.restarts(kNow), 1);
  EXPECT_EQ(policy.history(kNow).quick_failures, 0) << "no pause follows";
  RestartPolicy::RoundEnd end = failed_after(1s);
  end.is_paid = true;
  EXPECT_EQ(policy.round_ended(end, kNow), 1s);
  EXPECT_EQ(policy.restarts(kNow), 1);
}

TEST(RestartPolicy, ALossCostsNothing) {
  RestartPolicy policy(with_budget(1));
  policy.round_ended(lost_after(1h), kNow);
  EXPECT_EQ(policy.restarts(kNow), 0);
}

TEST(RestartPolicy, RestartsCountForAsLongAsTheWindow) {
  RestartRules rules = with_budget(2);
  rules.window = 60s;
  RestartPolicy policy(rules);
  policy.round_ended(failed_after(1s), kNow);
  policy.replaced(kNow + 30s);
  EXPECT_FALSE(policy.allows_retry(exited(1), 0s, kNow + 59s));
  EXPECT_TRUE(policy.allows_retry(exited(1), 0s, kNow + 60s))
      << "the first does not count any more";
  EXPECT_EQ(policy.restarts(kNow + 60s), 1);
  policy.round_ended(failed_after(1s), kNow + 60s);
  EXPECT_FALSE(policy.allows_retry(exited(1), 0s, kNow + 89s));
  EXPECT_TRUE(policy.allows_retry(exited(1), 0s, kNow + 90s));
  EXPECT_EQ(policy.restarts_in_all(), 3);
}

TEST(RestartPolicy, OfAnEarlierLeaderCountWhatCountedAsOfNow) {
  RestartRules rules = with_budget(2);
  rules.window = 60s;
  RestartPolicy before(rules);
  before.round_ended(failed_after(1s), kNow);
  before.round_ended(failed_after(1s), kNow + 30s);
  const RestartHistory history = before.history(kNow + 70s);
  EXPECT_EQ(history.restarts, 1);
  RestartPolicy policy(rules, history, kNow);
  EXPECT_EQ(policy.restarts(kNow + 59s), 1);
  policy.already_spent(7, kNow + 59s);
  EXPECT_EQ(policy.restarts(kNow + 59s), 2) << "no more than are allowed";
  EXPECT_EQ(policy.restarts(kNow + 60s), 1);
}

WorkerFailure at_step(std::optional<std::int64_t> step, StepKind kind = StepKind::kProgram) {
  WorkerFailure failure = exited(1);
  failure.progress.emplace();
  failure.progress->step = step;
  failure.progress->step_kind = kind;
  return failure;
}

TEST(RestartPolicy, RestartsWithoutAStepMoreAreInVain) {
  RestartRules rules = with_budget(100);
  rules.no_progress_restarts = 2;
  RestartPolicy policy(rules);
  const auto fails = [&](const WorkerFailure& failure) {
    policy.failed(failure);
    return !policy.why_in_vain().empty();
  };
  EXPECT_FALSE(fails(exited(1))) << "no step is known yet, and perhaps never";
  EXPECT_FALSE(fails(at_step(400)));
  EXPECT_FALSE(fails(at_step(390))) << "one restart, and no step more";
  EXPECT_FALSE(fails(at_step(401))) << "one more";
  EXPECT_FALSE(fails(at_step(401)));
  EXPECT_FALSE(fails(at_step(9000, StepKind::kCounted))) << "it has counted from its own start";
  EXPECT_FALSE(fails(at_step(30, StepKind::kOptimizer))) << "another scale";
  WorkerFailure of_another = exited(1);
  of_another.rank = 1;
  EXPECT_FALSE(fails(of_another)) << "a rank that never has a step";
  EXPECT_TRUE(fails(exited(1))) << "it ended before a step";
  EXPECT_EQ(policy.why_in_vain(),
            "no rank that failed had come past step 401, in spite of 2 restarts "
            "(--no-progress-restarts)");
  WorkerFailure replaced = at_step(402);
  EXPECT_TRUE(RestartPolicy(policy).note_step(replaced));
  RestartPolicy next(rules, policy.history(kNow), kNow);
  EXPECT_FALSE(next.why_in_vain().empty()) << "another leader knows it, too";
}

TEST(RestartPolicy, WithoutTheRuleNothingIsInVain) {
  RestartPolicy policy(with_budget(100));
  for (int i = 0; i < 50; ++i) policy.failed(at_step(4));
  EXPECT_EQ(policy.why_in_vain(), "");
}

TEST(RestartPolicy, SomeFailuresAreNotWorthARetry) {
  RestartRules rules;
  rules.max_restarts = 5;
  rules.min_uptime = 10s;
  rules.final_exit_codes = {3, 128 + 11};
  const RestartPolicy policy(rules);
  EXPECT_TRUE(policy.allows_retry(exited(1), 10s, kNow));
  EXPECT_FALSE(policy.allows_retry(exited(1), 9s, kNow));
  EXPECT_FALSE(policy.allows_retry(exited(3), 10s, kNow));
  WorkerFailure crash;
  crash.status = ExitStatus::killed(11, true);
  EXPECT_FALSE(policy.allows_retry(crash, 10s, kNow));
  WorkerFailure no_program = exited(127);
  no_program.is_worth_a_retry = false;
  EXPECT_FALSE(policy.allows_retry(no_program, 10s, kNow));
}

TEST(RestartPolicy, QuickLossesAreFollowedByPausesThatGrowUntilARoundHolds) {
  RestartPolicy policy({});
  for (const auto pause : {0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    EXPECT_EQ(policy.round_ended(lost_after(9s), kNow), pause);
  }
  EXPECT_EQ(policy.round_ended(lost_after(10s), kNow), 0s);
  EXPECT_EQ(policy.round_ended(lost_after(9s), kNow), 0s);
  EXPECT_EQ(policy.round_ended(lost_after(9s), kNow), 1s);
}

TEST(RestartPolicy, TheLongerOfTwoPausesCounts) {
  RestartRules rules;
  rules.max_restarts = 5;
  rules.pause_after_failure = {5s, 20s};
  RestartPolicy policy(rules);
  EXPECT_EQ(policy.round_ended({true, true, 1s}, kNow), 5s);
  EXPECT_EQ(policy.round_ended({true, true, 1s}, kNow), 10s);
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
