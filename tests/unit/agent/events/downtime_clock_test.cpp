// What restarts cost, from what happens on a node and when.
#include "agent/events/downtime_clock.h"

#include <gtest/gtest.h>

#include <string>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;
using TimePoint = DowntimeClock::TimePoint;

constexpr TimePoint kStart{100s};

TimePoint at(milliseconds since_start) { return kStart + since_start; }

StepMarks marks(std::int64_t first, milliseconds first_at,
                std::optional<milliseconds> wanted_at = {}, StepKind kind = StepKind::kProgram) {
  StepMarks marks;
  marks.step_kind = kind;
  marks.first_step = first;
  marks.first_step_at = at(first_at);
  if (wanted_at) marks.wanted_step_at = at(*wanted_at);
  return marks;
}

// Two ranks: round 0 runs after 1 s, its first steps are done after 2 s. Rank 1 fails after 10 s,
// when rank 0 has done 50 steps and rank 1 has done `step_of_1`. No worker is left after 10.1 s, the
// next round runs after 10.3 s.
class Restart : public ::testing::Test {
 protected:
  void fail(std::optional<std::int64_t> step_of_0 = 50, std::optional<std::int64_t> step_of_1 = 49,
            StepKind kind = StepKind::kProgram) {
    clock.round_runs(at(1s));
    if (step_of_0) clock.stepped(0, marks(1, 2s, {}, kind));
    if (step_of_1) clock.stepped(1, marks(1, 2s, {}, kind));
    clock.worker_ended(1, step_of_1, kind, /*has_succeeded=*/false, at(10s));
    clock.failed(at(10s));
    clock.failed(at(10'050ms));  // what follows from the failure
    clock.worker_ended(0, step_of_0, kind, /*has_succeeded=*/false, at(10'100ms));
    clock.all_ended(at(10'100ms));
    clock.round_runs(at(10'300ms));
  }
  Downtime latest(milliseconds now) const { return clock.latest(at(now)); }

  DowntimeClock clock{kStart, 2};
};

TEST_F(Restart, LastsUntilEveryRankHasCommittedTheStepAfter) {
  fail();
  ASSERT_TRUE(clock.wanted_step(0));
  EXPECT_EQ(clock.wanted_step(0)->step, 51);
  EXPECT_EQ(clock.wanted_step(1)->step, 51) << "the ranks do a step together";
  EXPECT_EQ(latest(11s), (Downtime{100ms, 200ms, 700ms, 0ms, {}, {}})) << "it lasts";
  clock.stepped(0, marks(41, 12s));
  EXPECT_EQ(latest(12'500ms), (Downtime{100ms, 200ms, 2200ms, 0ms, {}, {}}))
      << "rank 1 is not there";
  clock.stepped(1, marks(41, 13s));
  EXPECT_EQ(latest(14s), (Downtime{100ms, 200ms, 2700ms, 1s, 10, {}}));
  EXPECT_EQ(clock.take_recovered(at(14s)), std::nullopt);
  clock.stepped(0, marks(41, 12s, 15s));
  EXPECT_EQ(clock.take_recovered(at(15s)), std::nullopt);
  clock.stepped(1, marks(41, 13s, 16s));
  const Downtime whole{100ms, 200ms, 2700ms, 3s, 10, DowntimeEnd::kStepAfter};
  EXPECT_EQ(clock.take_recovered(at(16s)), whole);
  EXPECT_EQ(clock.take_recovered(at(17s)), std::nullopt) << "it is told once";
  EXPECT_EQ(latest(60s), whole);
  EXPECT_EQ(clock.all(at(60s)), whole);
  EXPECT_EQ(whole.total(), 6s);
  EXPECT_EQ(clock.until_first_step(at(60s)), 2s);
  EXPECT_DOUBLE_EQ(clock.goodput(at(82s)).value(), 1 - 6.0 / 80) << "6 s of 80 s after the start";
}

TEST_F(Restart, RepeatsNothingIfTheFirstStepIsTheNextOne) {
  fail();
  clock.stepped(0, marks(51, 12s, 12s));
  clock.stepped(1, marks(51, 13s, 13s));
  EXPECT_EQ(latest(20s), (Downtime{100ms, 200ms, 2700ms, 0ms, 0, DowntimeEnd::kStepAfter}));
}

TEST_F(Restart, EndsWithTheFirstStepsIfTheirNumbersSayNothing) {
  fail(50, 50, StepKind::kCounted);
  EXPECT_EQ(clock.wanted_step(0), std::nullopt);
  clock.stepped(0, marks(1, 12s, {}, StepKind::kCounted));
  EXPECT_EQ(clock.take_recovered(at(12s)), std::nullopt);
  clock.stepped(1, marks(1, 13s, {}, StepKind::kCounted));
  const Downtime whole{100ms, 200ms, 2700ms, 0ms, {}, DowntimeEnd::kFirstStep};
  EXPECT_EQ(clock.take_recovered(at(13s)), whole);
}

TEST_F(Restart, DoesNotCompareNumbersOfTwoKinds) {
  fail(50, 50, StepKind::kOptimizer);
  clock.stepped(0, marks(41, 12s, 14s, StepKind::kOptimizer));
  clock.stepped(1, marks(7, 13s, {}, StepKind::kProgram));
  EXPECT_EQ(latest(20s), (Downtime{100ms, 200ms, 2700ms, 0ms, {}, DowntimeEnd::kFirstStep}));
}

TEST_F(Restart, LastsUntilTheWorkersRunIfTheyReportNoSteps) {
  fail(std::nullopt, std::nullopt);
  const Downtime whole{100ms, 200ms, 0ms, 0ms, {}, DowntimeEnd::kWorkersRun};
  EXPECT_EQ(latest(11s), whole);
  EXPECT_EQ(latest(60s), whole);
  EXPECT_EQ(clock.take_recovered(at(60s)), std::nullopt) << "the event restarted has said it";
}

TEST_F(Restart, BeforeTheFirstStepOfAJobLastsUntilThatStep) {
  fail(std::nullopt, std::nullopt);
  clock.stepped(1, marks(1, 12s));
  EXPECT_EQ(latest(20s), (Downtime{100ms, 200ms, 1700ms, 0ms, {}, DowntimeEnd::kFirstStep}));
  EXPECT_EQ(clock.take_recovered(at(20s)), std::nullopt) << "rank 0 may follow";
  clock.stepped(0, marks(1, 13s));
  EXPECT_EQ(clock.take_recovered(at(20s))->joined, 2700ms);
}

TEST_F(Restart, DoesNotAwaitRanksThatNeverReported) {
  fail(50, std::nullopt);
  EXPECT_EQ(clock.wanted_step(1), std::nullopt);
  clock.stepped(0, marks(41, 12s, 15s));
  EXPECT_EQ(clock.take_recovered(at(15s)),
            (Downtime{100ms, 200ms, 1700ms, 3s, 10, DowntimeEnd::kStepAfter}));
}

TEST_F(Restart, IsOverForARankThatHasNothingLeftToDo) {
  fail();
  clock.stepped(0, marks(41, 12s));
  clock.worker_ended(0, 45, StepKind::kProgram, /*has_succeeded=*/true, at(14s));
  clock.worker_ended(1, std::nullopt, StepKind::kProgram, /*has_succeeded=*/true, at(15s));
  EXPECT_EQ(latest(60s), (Downtime{100ms, 200ms, 4700ms, 0ms, 10, DowntimeEnd::kStepAfter}));
}

TEST_F(Restart, EndsWithTheNextFailureAndTheLatestStepOfAllStillCounts) {
  fail();
  clock.stepped(0, marks(41, 12s));
  clock.stepped(1, marks(41, 12s));
  clock.worker_ended(0, 44, StepKind::kProgram, false, at(13s));
  clock.failed(at(13s));
  clock.worker_ended(1, 44, StepKind::kProgram, false, at(13s));
  clock.all_ended(at(13s));
  clock.stepped(0, marks(41, 12s, 14s));  // read late: it is nothing of that round
  const Downtime cut{100ms, 200ms, 1700ms, 1s, 10, {}};
  EXPECT_EQ(latest(14s), cut);
  EXPECT_EQ(clock.take_recovered(at(14s)), std::nullopt);
  clock.round_runs(at(14s));
  EXPECT_EQ(clock.wanted_step(0)->step, 51);
  clock.stepped(0, marks(51, 15s, 15s));
  clock.stepped(1, marks(51, 15s, 15s));
  const Downtime second{0ms, 1s, 1s, 0ms, 0, DowntimeEnd::kStepAfter};
  EXPECT_EQ(clock.take_recovered(at(15s)), second);
  EXPECT_EQ(clock.all(at(20s)).total(), 3s + 2s);
  EXPECT_EQ(clock.all(at(20s)).steps_repeated, 10);
  EXPECT_EQ(clock.all(at(20s)).until, std::nullopt) << "the first was never over";
}

TEST_F(Restart, LastsNoLongerThanTheJob) {
  fail();
  clock.finished(at(12s));
  EXPECT_EQ(latest(60s), (Downtime{100ms, 200ms, 1700ms, 0ms, {}, {}}));
}

TEST_F(Restart, IsNotMovedByMarksThatCannotBeTrue) {
  fail();
  clock.stepped(0, marks(41, 9s, 1h));
  clock.stepped(1, marks(INT64_MAX, -50s, {}));
  EXPECT_EQ(latest(20s), (Downtime{100ms, 200ms, 0ms, 9700ms, 10, {}}));
}

TEST(DowntimeClock, AFailureWithoutARestartIsNoneButMovesNothingForward) {
  DowntimeClock clock(kStart, 1);
  EXPECT_EQ(clock.goodput(at(1s)), std::nullopt) << "nothing has run";
  EXPECT_EQ(clock.until_first_step(at(1s)), 1s);
  EXPECT_EQ(clock.round_runs(at(2s)), 2s) << "since the job's start";
  EXPECT_EQ(clock.all(at(5s)), no_downtime());
  EXPECT_EQ(clock.until_first_step(at(5s)), 2s);
  EXPECT_EQ(clock.goodput(at(5s)), std::nullopt) << "no step was done";
  clock.stepped(0, marks(1, 4s));
  EXPECT_EQ(clock.goodput(at(4s)), 1.0) << "the start is no downtime";
  EXPECT_EQ(clock.until_first_step(at(5s)), 4s);
  clock.failed(at(8s));
  clock.finished(at(10s));
  EXPECT_EQ(clock.all(at(10s)), no_downtime());
  EXPECT_DOUBLE_EQ(clock.goodput(at(10s)).value(), 1 - 2.0 / 6);
  EXPECT_EQ(clock.wall(at(10s)), 10s);
}

TEST(DowntimeClock, AddsUpRestarts) {
  DowntimeClock clock(kStart, 1);
  clock.round_runs(at(1s));
  for (int i = 1; i <= 3; ++i) {
    clock.failed(at(i * 10s));
    clock.all_ended(at(i * 10s + 1s));
    EXPECT_EQ(clock.round_runs(at(i * 10s + 3s)), 3s);
  }
  const Downtime all{3s, 6s, 0s, 0s, {}, DowntimeEnd::kWorkersRun};
  EXPECT_EQ(clock.all(at(60s)), all);
}

// Three ranks run from 1 s on; rank 1 of this node fails after 10 s.
class InPlace : public ::testing::Test {
 protected:
  InPlace() {
    clock.round_runs(at(1s));
    for (const int rank : {0, 1}) clock.stepped(rank, marks(1, 2s));
  }
  void fail(milliseconds when) {
    clock.worker_ended(1, 50, StepKind::kProgram, /*has_succeeded=*/false, at(when));
    clock.failed(at(when));
  }
  DowntimeClock clock{kStart, 2};
};

TEST_F(InPlace, LastsUntilEveryRankHasCommittedAStepInTheGeneration) {
  fail(10s);
  EXPECT_EQ(clock.replaced(1, at(10'005ms)), 5ms);
  EXPECT_EQ(clock.latest(at(11s)), (Downtime{5ms, 0ms, 995ms, 0ms, {}, {}})) << "it lasts";
  clock.regrouped(0, 1, at(10'010ms));
  clock.regrouped(1, 1, at(10'030ms));
  clock.committed(0, 1, at(10'040ms));
  EXPECT_EQ(clock.take_recovered(at(11s)), std::nullopt);
  clock.committed(1, 1, at(10'042ms));
  const Downtime whole{5ms, 0ms, 25ms, 12ms, 0, DowntimeEnd::kStepAfter};
  EXPECT_EQ(clock.take_recovered(at(11s)), whole);
  EXPECT_EQ(clock.generation(), 1U);
  EXPECT_EQ(clock.take_recovered(at(11s)), std::nullopt) << "once";
  EXPECT_EQ(clock.all(at(20s)), whole);
  EXPECT_EQ(clock.in_place(), 1);
  EXPECT_NEAR(clock.goodput(at(20s)).value(), 1 - 0.042 / 18, 1e-9);
}

TEST_F(InPlace, OfARankOfAnotherNodeTheTimeBeforeItWasToldIsNotKnown) {
  EXPECT_EQ(clock.replaced(1, at(10s)), 0ms);
  for (const int rank : {0, 1}) clock.committed(rank, 1, at(10'020ms));
  EXPECT_EQ(clock.take_recovered(at(11s)),
            (Downtime{0ms, 0ms, 20ms, 0ms, 0, DowntimeEnd::kStepAfter}));
}

TEST_F(InPlace, TheNextGenerationEndsTheOutageBefore) {
  fail(10s);
  clock.replaced(1, at(10'005ms));
  clock.regrouped(0, 1, at(10'006ms));
  clock.replaced(2, at(10'010ms));
  clock.committed(0, 1, at(10'011ms));
  clock.committed(1, 1, at(10'011ms));
  EXPECT_EQ(clock.take_recovered(at(11s)), std::nullopt) << "of the one before";
  for (const int rank : {0, 1}) clock.committed(rank, 2, at(10'030ms));
  EXPECT_EQ(clock.take_recovered(at(11s)),
            (Downtime{0ms, 0ms, 20ms, 0ms, 0, DowntimeEnd::kStepAfter}));
  EXPECT_EQ(clock.all(at(20s)).total(), 30ms);
  EXPECT_EQ(clock.in_place(), 2);
}

TEST_F(InPlace, ARankThatIsDoneIsNotAwaited) {
  clock.worker_ended(0, 50, StepKind::kProgram, /*has_succeeded=*/true, at(9s));
  fail(10s);
  clock.replaced(1, at(10s));
  clock.committed(1, 1, at(10'020ms));
  ASSERT_TRUE(clock.take_recovered(at(11s)));
}

TEST_F(InPlace, ARoundThatFollowsWaitsForTheStepAfterAsEver) {
  fail(10s);
  clock.replaced(1, at(10'005ms));
  for (const int rank : {0, 1}) clock.committed(rank, 1, at(10'020ms));
  clock.failed(at(12s));
  for (const int rank : {0, 1}) clock.worker_ended(rank, 60, StepKind::kProgram, false, at(12s));
  clock.all_ended(at(12'100ms));
  clock.round_runs(at(12'200ms));
  EXPECT_EQ(clock.generation(), std::nullopt);
  EXPECT_EQ(clock.wanted_step(1)->step, 61);
  for (const int rank : {0, 1}) clock.stepped(rank, marks(41, 13s, 15s));
  EXPECT_EQ(clock.take_recovered(at(16s)),
            (Downtime{100ms, 100ms, 800ms, 2s, 20, DowntimeEnd::kStepAfter}));
}

}  // namespace
}  // namespace ddprun::agent
