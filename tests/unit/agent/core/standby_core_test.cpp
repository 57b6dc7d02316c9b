#include "agent/core/standby_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

namespace ddprun::agent::standby {

// For the messages of failed tests: which action it is.
void PrintTo(const Action& action, std::ostream* out) { *out << "action " << action.index(); }

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::VariantWith;

const std::vector<std::string> kModules{"torch", "torch._dynamo", "accelerate"};

auto tells(const std::string& text) {
  return Contains(VariantWith<Tell>(Field(&Tell::sentence, HasSubstr(text))));
}

Core idle(int wanted = 2) { return Core({.wanted = wanted, .modules = kModules, .why_none = ""}); }

Core loading(Core core = idle()) {
  core.step(RoundRuns{});
  core.step(TimerFired{});
  core.step(ZygoteHeld{});
  core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  return core;
}

Core ready(Core core = idle()) {
  core = loading(std::move(core));
  core.step(ZygoteReady{});
  for (int i = 0; i < core.wanted(); ++i) core.step(StandbyWaits{});
  return core;
}

TEST(StandbyCore, MakesThemWhenTheJobHasSettled) {
  Core core = idle();
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(StartTrial{}, ArmTimer{kTrialLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(EndZygote{}));
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}),
              ElementsAre(StartZygote{}, ArmTimer{kLoadLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules}));
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(DisarmTimer{}, ForkStandby{}, ForkStandby{}));
  EXPECT_THAT(core.step(StandbyWaits{}), IsEmpty());
  EXPECT_THAT(core.step(StandbyWaits{}), tells("2 wait for a restart"));
  EXPECT_EQ(core.waiting(), 2);
  EXPECT_EQ(core.why_none(), "");
}

TEST(StandbyCore, WaitsForWorkersThatHaveNotReachedTheirSteps) {
  Core core = idle();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(TimerFired{true}), ElementsAre(ArmTimer{kSettle * 2}));
  EXPECT_THAT(core.step(TimerFired{true}), ElementsAre(ArmTimer{kSettle * 4}));
  for (int i = 0; i < 10; ++i) core.step(TimerFired{true});
  EXPECT_THAT(core.step(TimerFired{true}), ElementsAre(ArmTimer{kSettleMax}));
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, LooksSoonerWhenTheWorkersAreInTheirSteps) {
  Core core = idle();
  EXPECT_THAT(core.step(WorkersStep{}), IsEmpty()) << "no round has begun";
  EXPECT_FALSE(core.is_one_coming());
  core.step(RoundRuns{});
  EXPECT_TRUE(core.is_one_coming());
  EXPECT_THAT(core.step(WorkersStep{}), ElementsAre(ArmTimer{kSettleInSteps}));
  core = loading();
  EXPECT_THAT(core.step(WorkersStep{}), IsEmpty());
  EXPECT_TRUE(core.is_one_coming());
  core = ready();
  EXPECT_FALSE(core.is_one_coming()) << "they wait";
  core.step(StandbyTaken{});
  core.step(StandbyTaken{});
  EXPECT_TRUE(core.is_one_coming());
  core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  EXPECT_FALSE(core.is_one_coming()) << "not in this round";
  core = Core({.wanted = 2, .is_program = true, .modules = {}, .why_none = ""});
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(WorkersStep{}), IsEmpty());
  EXPECT_FALSE(core.is_one_coming());
}

Core first_from_zygote() {
  return Core({.wanted = 2, .modules = kModules, .starts_first = true, .why_none = ""});
}

Core loading_first() {
  Core core = first_from_zygote();
  EXPECT_THAT(core.step(RoundBegins{}), ElementsAre(StartTrial{}, ArmTimer{kTrialLimit}));
  EXPECT_TRUE(core.delays_start());
  core.step(ZygoteHeld{});
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}),
              ElementsAre(StartZygote{}, ArmTimer{kFirstLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules}));
  return core;
}

TEST(StandbyCore, TheFirstWorkersComeFromTheZygote) {
  Core core = loading_first();
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(ForkStandby{}, ForkStandby{}));
  EXPECT_THAT(core.step(StandbyWaits{}), IsEmpty());
  EXPECT_TRUE(core.delays_start());
  EXPECT_THAT(core.step(StandbyWaits{}), ElementsAre(DisarmTimer{}));
  EXPECT_FALSE(core.delays_start());
  core.step(StandbyTaken{});
  core.step(StandbyTaken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(ForkStandby{}, ForkStandby{}));
  core.step(StandbyWaits{});
  EXPECT_THAT(core.step(StandbyWaits{}), tells("2 wait for a restart"));
  EXPECT_THAT(core.step(WorkersStep{}), IsEmpty());
  EXPECT_THAT(core.step(RoundBegins{}), IsEmpty()) << "a restart";
}

TEST(StandbyCore, TheFirstWorkersStartByExecWhereTheZygoteFails) {
  const std::vector<Event> failures{ZygoteUnfit{"torch", "it has threads"},
                                    ZygoteEnded{ExitStatus::exited(1)}, CannotStart{"no memory"}};
  for (std::size_t i = 0; i < failures.size(); ++i) {
    Core core = loading_first();
    EXPECT_THAT(core.step(failures[i]), ElementsAre(EndZygote{}, EndStandbys{}, DisarmTimer{}))
        << i;
    EXPECT_FALSE(core.delays_start());
    EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  }
  Core core = loading_first();
  core.step(ZygoteReady{});
  core.step(StandbyWaits{});
  EXPECT_THAT(core.step(StandbyLost{.has_waited = false}),
              ElementsAre(EndZygote{}, EndStandbys{}, DisarmTimer{}));
  EXPECT_FALSE(core.delays_start());
  core = loading_first();
  EXPECT_THAT(core.step(TimerFired{}), tells("one by one: loading their modules once"));
  EXPECT_FALSE(core.delays_start());
  core = first_from_zygote();
  core.step(RoundBegins{});
  EXPECT_THAT(core.step(TimerFired{}), tells("does not start in 20 s"));
  EXPECT_FALSE(core.delays_start());
}

TEST(StandbyCore, NobodyWantsAny) {
  Core core({.wanted = 0, .modules = {}, .why_none = "the program is no script"});
  EXPECT_EQ(core.why_none(), "the program is no script");
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  EXPECT_THAT(core.step(TimerFired{}), IsEmpty());
}

TEST(StandbyCore, APythonThatIsNotHeldRunsNoProgram) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(TimerFired{});
  const auto actions = core.step(ZygoteEnded{ExitStatus::exited(0)});
  EXPECT_THAT(actions, tells("does not import a sitecustomize"));
  EXPECT_THAT(actions, Not(Contains(Action(StartZygote{}))));
  EXPECT_THAT(core.why_none(), HasSubstr("sitecustomize"));
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
}

TEST(StandbyCore, ATrialThatSomebodyKillsIsMadeAgain) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(TimerFired{});
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), ElementsAre(DisarmTimer{}));
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, ATrialThatHangsIsEnded) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(TimerFired{});
  EXPECT_THAT(core.step(TimerFired{}), AllOf(Contains(Action(EndZygote{})), tells("20 s")));
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), IsEmpty());
}

TEST(StandbyCore, LeavesOutTheModuleThatIsToBlame) {
  Core core = loading();
  const auto actions = core.step(ZygoteUnfit{"accelerate", "accelerate reads RANK"});
  EXPECT_THAT(actions, AllOf(Contains(Action(EndZygote{})), Contains(Action(StartZygote{})),
                             tells("accelerate reads RANK")));
  EXPECT_THAT(core.step(ZygoteHeld{}),
              ElementsAre(LoadModules{{"torch", "torch._dynamo"}, {"accelerate"}}));
}

TEST(StandbyCore, WhatTheZygoteHasFoundInTheProgramsTextIsLeftOutLikewise) {
  Core core = loading();
  const auto actions = core.step(ZygoteUnfit{"lightning", "it reads SLURM_PROCID"});
  EXPECT_THAT(actions, AllOf(Contains(Action(EndZygote{})), Contains(Action(StartZygote{})),
                             Contains(VariantWith<Tell>(Field(&Tell::is_bad, false)))))
      << "nobody has asked for it";
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules, {"lightning"}}));
  EXPECT_THAT(core.left_out(), ElementsAre("lightning"));
}

TEST(StandbyCore, AProgramThatChangesWhatOnePackageSeesGetsStandbysWithoutIt) {
  Core core = ready();
  core.step(StandbyTaken{});
  core.step(StandbyTaken{});
  EXPECT_THAT(core.step(StartedAnew{"datasets", "the program sets HF_HOME"}),
              AllOf(Contains(Action(EndZygote{})), Contains(Action(EndStandbys{})),
                    Contains(Action(ArmTimer{kSettle})), tells("datasets no longer")));
  EXPECT_THAT(core.step(StartedAnew{"datasets", "the program sets HF_HOME"}), IsEmpty())
      << "the other rank";
  core.step(TimerFired{});
  core.step(ZygoteHeld{});
  core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules, {"datasets"}}));
  core.step(ZygoteReady{});
  EXPECT_THAT(core.step(StartedAnew{"torch", "the program sets OMP_NUM_THREADS"}),
              tells("no standbys"));
}

TEST(StandbyCore, LoadsTheFirstAloneThenNothing) {
  Core core = loading();
  EXPECT_THAT(core.step(ZygoteUnfit{"", "it starts a thread"}), tells("torch alone"));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{{"torch"}, {"*"}}));
  const auto actions = core.step(ZygoteUnfit{"", "it starts a thread"});
  EXPECT_THAT(actions, tells("no standbys: it starts a thread"));
  EXPECT_THAT(actions, Not(Contains(Action(StartZygote{}))));
}

TEST(StandbyCore, AModuleThatEndsTheProcessOrHangs) {
  Core core = loading();
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::exited(3)}), tells("exit code 3"));
  core.step(ZygoteHeld{});
  EXPECT_THAT(core.step(TimerFired{}), AllOf(Contains(Action(EndZygote{})), tells("300 s")));
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
}

TEST(StandbyCore, AKilledZygoteIsMadeAgainInTheNextRound) {
  Core core = loading();
  for (int i = 1; i < kKillsMax; ++i) {
    EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), ElementsAre(DisarmTimer{}));
    core = loading(std::move(core));
  }
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), tells("no standbys"));
}

TEST(StandbyCore, StandbysOutliveTheirZygote) {
  Core core = ready();
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), ElementsAre(DisarmTimer{}));
  EXPECT_EQ(core.waiting(), 2);
  core.step(StandbyTaken{});
  core.step(StandbyTaken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, MakesNewOnesAfterARestart) {
  Core core = ready();
  core.step(StandbyTaken{});
  core.step(StandbyTaken{});
  EXPECT_EQ(core.waiting(), 0);
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(ForkStandby{}, ForkStandby{}));
  EXPECT_THAT(core.step(TimerFired{}), IsEmpty());  // they are coming
}

TEST(StandbyCore, OneThatIsTakenInTheMiddleOfARoundIsReplaced) {
  Core core = ready();
  EXPECT_THAT(core.step(StandbyTaken{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(ForkStandby{}));
}

TEST(StandbyCore, OnesThatARoundHasNotUsedEnd) {
  Core core = ready();
  core.step(StandbyTaken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(EndStandbys{}, ArmTimer{kRefill}));
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(ForkStandby{}, ForkStandby{}));
}

TEST(StandbyCore, LostOnesAreReplacedAFewTimes) {
  Core core = ready();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(core.step(StandbyLost{}), ElementsAre(ArmTimer{kRefill}));
    EXPECT_THAT(core.step(TimerFired{}), ElementsAre(ForkStandby{}));
    core.step(StandbyWaits{});
  }
  EXPECT_THAT(core.step(StandbyLost{}), IsEmpty());
  EXPECT_EQ(core.waiting(), 1);
  EXPECT_THAT(core.step(StandbyLost{}),
              tells("no standbys: processes forked for them end at once"));
  EXPECT_THAT(core.why_none(), HasSubstr("ulimit -u"));
}

TEST(StandbyCore, AProgramThatStartsAnewGetsNoMore) {
  Core core = ready();
  core.step(StandbyTaken{});
  EXPECT_THAT(core.step(StartedAnew{"torch", "the program sets OMP_NUM_THREADS"}),
              AllOf(Contains(Action(EndZygote{})), Contains(Action(EndStandbys{})),
                    tells("the program sets OMP_NUM_THREADS")));
  EXPECT_EQ(core.waiting(), 0);
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  EXPECT_THAT(core.step(StartedAnew{"torch", "again"}), IsEmpty());
}

TEST(StandbyCore, NothingIsLeftWhenTheJobIsOver) {
  for (Core core : {idle(), loading(), ready()}) {
    EXPECT_THAT(core.step(JobOver{}), ElementsAre(EndZygote{}, EndStandbys{}, DisarmTimer{}));
    EXPECT_THAT(core.step(StandbyWaits{}), ElementsAre(EndStandbys{}));
    EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  }
}

Core of_program() { return Core({.wanted = 2, .is_program = true, .modules = {}, .why_none = ""}); }

TEST(StandbyCore, AProgramThatSaysSoIsItsOwnZygote) {
  Core core = of_program();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(TimerFired{}), ElementsAre(StartZygote{}, ArmTimer{kLoadLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{}));
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(DisarmTimer{}, ForkStandby{}, ForkStandby{}));
  core.step(StandbyWaits{});
  EXPECT_THAT(core.step(StandbyWaits{}), tells("with their libraries loaded"));
}

TEST(StandbyCore, AProgramThatHasNotSaidSoIsAskedLater) {
  Core core = of_program();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(TimerFired{true, "it has not said so"}),
              ElementsAre(ArmTimer{kSettle * 2}));
  const auto actions = core.step(TimerFired{false, "it has not said so"});
  EXPECT_THAT(actions, AllOf(Contains(Action(ArmTimer{kSettle * 4})), tells("it has not said so")));
  EXPECT_EQ(core.why_none(), "it has not said so");
  EXPECT_THAT(core.step(TimerFired{false, "it has not said so"}),
              ElementsAre(ArmTimer{kSettle * 8}));
  EXPECT_THAT(core.step(TimerFired{}), Contains(Action(StartZygote{})));
  EXPECT_EQ(core.why_none(), "");
}

TEST(StandbyCore, AProgramThatCannotWaitIsNotTriedAgain) {
  for (const Event& event : {Event(ZygoteUnfit{"", "the program starts a thread"}),
                             Event(TimerFired{}), Event(ZygoteEnded{ExitStatus::exited(3)})}) {
    Core core = of_program();
    core.step(RoundRuns{});
    core.step(TimerFired{});
    EXPECT_THAT(core.step(event),
                AllOf(tells("no standbys: the program"), Not(Contains(Action(StartZygote{})))));
    EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  }
}

TEST(StandbyCore, AChangedProgramGetsItsOwn) {
  Core while_loading = of_program();
  while_loading.step(RoundRuns{});
  while_loading.step(TimerFired{});
  Core while_ready = while_loading;
  while_ready.step(ZygoteReady{});
  while_ready.step(StandbyWaits{});
  for (Core core : {while_loading, while_ready}) {
    EXPECT_THAT(core.step(ProgramChanged{"/bin/train"}),
                AllOf(Contains(Action(EndZygote{})), Contains(Action(EndStandbys{})),
                      Contains(Action(DisarmTimer{})), tells("/bin/train has changed")));
    EXPECT_EQ(core.waiting(), 0);
    EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  }
}

TEST(StandbyCore, AZygoteThatCannotBeStarted) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(TimerFired{});
  EXPECT_THAT(core.step(CannotStart{"no process may be started"}),
              tells("no standbys: no process may be started"));
}

}  // namespace
}  // namespace ddprun::agent::standby
