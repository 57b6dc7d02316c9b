// When prepared standbys are made, and why there are none.
#include "agent/core/prepared_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace ddprun::agent::prepared {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::VariantWith;

const auto made = [](int local_rank) { return VariantWith<Make>(Make{local_rank}); };
const auto armed = [](std::chrono::milliseconds after) {
  return VariantWith<ArmTimer>(ArmTimer{after});
};
const auto told = [](const std::string& part) {
  return VariantWith<Tell>(::testing::Field(&Tell::sentence, HasSubstr(part)));
};
const auto ends_all = VariantWith<EndAll>(EndAll{});
const auto disarms = VariantWith<DisarmTimer>(DisarmTimer{});

class PreparedCore : public ::testing::Test {
 protected:
  std::vector<Action> on(const Event& event) { return core_.step(event); }
  // All of two ranks wait.
  void fill() {
    on(RoundRuns{});
    on(AllCanRecover{});
    on(TimerFired{});
    on(Waits{0});
    on(Waits{1});
    ASSERT_EQ(core_.waiting(), 2);
  }
  Core core_{/*is_wanted=*/true, /*local_world_size=*/2};
};

TEST_F(PreparedCore, MakesOneAfterTheOtherWhenAllCanRecover) {
  EXPECT_THAT(on(RoundRuns{}), IsEmpty());
  EXPECT_THAT(on(TimerFired{}), IsEmpty());
  EXPECT_THAT(on(AllCanRecover{}), ElementsAre(armed(kSettle)));
  EXPECT_THAT(on(AllCanRecover{}), IsEmpty());
  EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_TRUE(core_.waits(0));
  EXPECT_FALSE(core_.waits(1));
  EXPECT_THAT(on(Waits{1}), ElementsAre(disarms, told("workers are replaced in place")));
  EXPECT_EQ(core_.why_none(), "");
}

TEST_F(PreparedCore, WaitsForABlankStandbyButNotForEver) {
  on(RoundRuns{});
  on(AllCanRecover{});
  const TimerFired coming{.is_blank_coming = true};
  EXPECT_THAT(on(coming), ElementsAre(armed(kRefill)));
  EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0, /*is_blank_coming=*/true}), ElementsAre(armed(kRefill)));
  for (int i = 1; i < kForkLimit / kRefill; ++i) {
    EXPECT_THAT(on(coming), ElementsAre(armed(kRefill))) << i;
  }
  EXPECT_THAT(on(coming), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_THAT(on(Waits{1, /*is_blank_coming=*/true}),
              ElementsAre(disarms, told("workers are replaced in place")));
}

TEST_F(PreparedCore, NoneAreMadeWhereNoneAreWanted) {
  Core core(false, 2);
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty());
  EXPECT_THAT(core.step(WorkerCannot{"why"}), IsEmpty());
  EXPECT_THAT(core.step(JobOver{}), IsEmpty());
}

TEST_F(PreparedCore, OneThatWasTakenIsMadeAnewWhenTheReplacementIsOver) {
  fill();
  EXPECT_THAT(on(Taken{1}), ElementsAre(armed(kRefill)));
  EXPECT_FALSE(core_.waits(1));
  EXPECT_TRUE(core_.waits(0));
  EXPECT_THAT(on(TimerFired{.is_replacing = true}), ElementsAre(armed(kRefill)));
  EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_THAT(on(Taken{0}), IsEmpty()) << "one at a time";
  EXPECT_THAT(on(Waits{1}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(disarms)) << "it was told once";
}

TEST_F(PreparedCore, TwoThatWereTakenAreMadeOneAfterTheOther) {
  fill();
  on(Taken{0});
  EXPECT_THAT(on(Taken{1}), IsEmpty());
  EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(armed(kSetUpLimit), made(1)));
}

TEST_F(PreparedCore, ASetUpThatFailsIsSaidOnceAndNotTriedAgainInThisRound) {
  on(RoundRuns{});
  on(AllCanRecover{});
  on(TimerFired{});
  on(Waits{0});
  EXPECT_THAT(
      on(Ended{1, ExitStatus::exited(1), "RuntimeError: no data"}),
      ElementsAre(
          ends_all, disarms,
          told("cannot be replaced in place: a standby that made the program's set-up without "
               "the others ended with exit code 1: RuntimeError: no data")));
  EXPECT_THAT(core_.why_none(), HasSubstr("no data"));
  EXPECT_FALSE(core_.waits(0));
  for (const Event& event : std::vector<Event>{TimerFired{}, AllCanRecover{}, Waits{0}, Taken{0},
                                               Cannot{"x"}, WorkerCannot{"x"}, CannotStart{"x"}}) {
    EXPECT_THAT(on(event), IsEmpty());
  }
  EXPECT_THAT(on(RoundRuns{}), IsEmpty());
  EXPECT_EQ(core_.why_none(), "");
  on(AllCanRecover{});
  on(TimerFired{});
  EXPECT_THAT(on(Ended{0, ExitStatus::exited(1), "RuntimeError: no data"}),
              ElementsAre(ends_all, disarms))
      << "the same sentence again";
}

TEST_F(PreparedCore, WhoSaysThatItCannotIsQuoted) {
  on(RoundRuns{});
  EXPECT_THAT(on(WorkerCannot{"a hook keeps state"}),
              ElementsAre(told("a hook keeps state; when one")));
  fill();
  EXPECT_THAT(on(Cannot{"its loader has workers"}),
              ElementsAre(ends_all, disarms, told("its loader has workers")));
}

TEST_F(PreparedCore, AReplacementThatWasWrongIsTheLastOfTheJob) {
  fill();
  EXPECT_THAT(on(WorkerCannot{"weights differ", /*nor_later=*/true}),
              ElementsAre(ends_all, disarms, told("weights differ; when one")));
  EXPECT_TRUE(core_.is_given_up());
  for (const auto& event : std::vector<Event>{RoundOver{}, RoundRuns{}, AllCanRecover{}}) {
    EXPECT_THAT(on(event), IsEmpty());
    EXPECT_EQ(core_.why_none(), "weights differ");
  }
}

TEST_F(PreparedCore, ALimitOnTheSetUp) {
  on(RoundRuns{});
  on(AllCanRecover{});
  on(TimerFired{});
  EXPECT_THAT(on(TimerFired{}), ElementsAre(ends_all, disarms, told("in 5 minutes")));
}

TEST_F(PreparedCore, OneThatCannotBeStartedIsTheEnd) {
  on(RoundRuns{});
  on(AllCanRecover{});
  on(TimerFired{});
  EXPECT_THAT(on(CannotStart{"memory is short"}),
              ElementsAre(ends_all, disarms, told("memory is short")));
}

TEST_F(PreparedCore, AKillIsNoVerdictButForTheThird) {
  on(RoundRuns{});
  on(AllCanRecover{});
  on(TimerFired{});
  for (int i = 1; i < kKillsMax; ++i) {
    EXPECT_THAT(on(Ended{0, ExitStatus::killed(SIGKILL), ""}), ElementsAre(armed(kRefill)));
    EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(0)));
  }
  EXPECT_THAT(on(Ended{0, ExitStatus::killed(SIGKILL), ""}),
              ElementsAre(ends_all, disarms, told("SIGKILL")));
}

TEST_F(PreparedCore, OneThatEndsWhileItWaitsIsMadeAnewAFewTimes) {
  fill();
  for (int i = 0; i < kLostMax; ++i) {
    EXPECT_THAT(on(Ended{1, ExitStatus::killed(SIGKILL), ""}), ElementsAre(armed(kRefill)));
    EXPECT_THAT(on(TimerFired{}), ElementsAre(armed(kSetUpLimit), made(1)));
    on(Waits{1});
  }
  EXPECT_THAT(on(Ended{1, ExitStatus::killed(SIGKILL), ""}),
              ElementsAre(ends_all, disarms, told("ended while they waited")));
}

TEST_F(PreparedCore, OneThatEndsWhileAnotherIsMadeFollowsIt) {
  on(RoundRuns{});
  on(AllCanRecover{});
  on(TimerFired{});
  on(Waits{0});
  EXPECT_THAT(on(Ended{0, ExitStatus::killed(SIGKILL), ""}), IsEmpty());
  EXPECT_THAT(on(Waits{1}), ElementsAre(armed(kSetUpLimit), made(0)));
}

TEST_F(PreparedCore, TheyEndWithTheRoundAndWithTheJob) {
  fill();
  EXPECT_THAT(on(RoundOver{}), ElementsAre(ends_all, disarms));
  EXPECT_THAT(on(RoundOver{}), IsEmpty());
  EXPECT_EQ(core_.waiting(), 0);
  fill();
  EXPECT_THAT(on(JobOver{}), ElementsAre(ends_all, disarms));
  EXPECT_THAT(on(RoundRuns{}), IsEmpty());
  EXPECT_THAT(on(AllCanRecover{}), IsEmpty());
}

}  // namespace
}  // namespace ddprun::agent::prepared
