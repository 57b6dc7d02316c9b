// When standbys are made, and why there are none.
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

Core idle(int wanted = 2) {
  return Core({.wanted = wanted, .modules = kModules, .why_none = ""}, 2);
}

Core of_program() {
  return Core({.wanted = 2, .is_program = true, .modules = {}, .why_none = ""}, 2);
}

Core loading(Core core = idle()) {
  core.step(RoundRuns{});
  core.step(ZygoteTimer{});
  core.step(ZygoteHeld{});
  core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  return core;
}

Core ready(Core core = idle()) {
  core = loading(std::move(core));
  core.step(ZygoteReady{});
  for (int i = 0; i < core.wanted(); ++i) core.step(Waits{});
  return core;
}

TEST(StandbyCore, MakesThemWhenTheJobHasSettled) {
  Core core = idle();
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(StartTrial{}, ArmTimer{kTrialLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(EndZygote{}));
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}),
              ElementsAre(StartZygote{}, ArmTimer{kLoadLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules}));
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(DisarmTimer{}, ForkBlank{}, ForkBlank{}));
  EXPECT_THAT(core.step(Waits{}), IsEmpty());
  EXPECT_THAT(core.step(Waits{}), tells("2 wait for a restart"));
  EXPECT_EQ(core.waiting(), 2);
  EXPECT_EQ(core.why_none(), "");
}

TEST(StandbyCore, WaitsForWorkersThatHaveNotReachedTheirSteps) {
  Core core = idle();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(ZygoteTimer{true}), ElementsAre(ArmTimer{kSettle * 2}));
  EXPECT_THAT(core.step(ZygoteTimer{true}), ElementsAre(ArmTimer{kSettle * 4}));
  for (int i = 0; i < 10; ++i) core.step(ZygoteTimer{true});
  EXPECT_THAT(core.step(ZygoteTimer{true}), ElementsAre(ArmTimer{kSettleMax}));
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, LooksSoonerWhenTheWorkersAreInTheirSteps) {
  Core core = idle();
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty()) << "no round has begun";
  EXPECT_FALSE(core.is_blank_coming());
  core.step(RoundRuns{});
  EXPECT_TRUE(core.is_blank_coming());
  EXPECT_THAT(core.step(AllCanRecover{}), ElementsAre(ArmTimer{kSettleInSteps}));
  core = loading();
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty());
  EXPECT_TRUE(core.is_blank_coming());
  core = ready();
  EXPECT_FALSE(core.is_blank_coming()) << "they wait";
  core.step(Taken{});
  core.step(Taken{});
  EXPECT_TRUE(core.is_blank_coming());
  core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  EXPECT_FALSE(core.is_blank_coming()) << "not in this round";
  core = of_program();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty());
  EXPECT_FALSE(core.is_blank_coming());
}

Core first_from_zygote() {
  return Core({.wanted = 2, .modules = kModules, .starts_first = true, .why_none = ""}, 2);
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
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(ForkBlank{}, ForkBlank{}));
  EXPECT_THAT(core.step(Waits{}), IsEmpty());
  EXPECT_TRUE(core.delays_start());
  EXPECT_THAT(core.step(Waits{}), ElementsAre(DisarmTimer{}));
  EXPECT_FALSE(core.delays_start());
  core.step(Taken{});
  core.step(Taken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(ForkBlank{}, ForkBlank{}));
  core.step(Waits{});
  EXPECT_THAT(core.step(Waits{}), tells("2 wait for a restart"));
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty());
  EXPECT_THAT(core.step(RoundBegins{}), IsEmpty()) << "a restart";
}

TEST(StandbyCore, TheFirstWorkersStartByExecWhereTheZygoteFails) {
  const std::vector<Event> failures{ZygoteUnfit{"torch", "it has threads"},
                                    ZygoteEnded{ExitStatus::exited(1)},
                                    ZygoteCannotStart{"no memory"}};
  for (std::size_t i = 0; i < failures.size(); ++i) {
    Core core = loading_first();
    EXPECT_THAT(core.step(failures[i]), ElementsAre(EndZygote{}, EndBlanks{}, DisarmTimer{})) << i;
    EXPECT_FALSE(core.delays_start());
    EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  }
  Core core = loading_first();
  core.step(ZygoteReady{});
  core.step(Waits{});
  EXPECT_THAT(core.step(Lost{.has_waited = false}),
              ElementsAre(EndZygote{}, EndBlanks{}, DisarmTimer{}));
  EXPECT_FALSE(core.delays_start());
  core = loading_first();
  EXPECT_THAT(core.step(ZygoteTimer{}), tells("one by one: loading their modules once"));
  EXPECT_FALSE(core.delays_start());
  core = first_from_zygote();
  core.step(RoundBegins{});
  EXPECT_THAT(core.step(ZygoteTimer{}), tells("does not start in 20 s"));
  EXPECT_FALSE(core.delays_start());
}

TEST(StandbyCore, NobodyWantsAny) {
  Core core({.wanted = 0, .modules = {}, .why_none = "the program is no script"}, 2);
  EXPECT_EQ(core.why_none(), "the program is no script");
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  EXPECT_THAT(core.step(ZygoteTimer{}), IsEmpty());
}

TEST(StandbyCore, APythonThatIsNotHeldRunsNoProgram) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(ZygoteTimer{});
  const auto actions = core.step(ZygoteEnded{ExitStatus::exited(0)});
  EXPECT_THAT(actions, tells("does not import a sitecustomize"));
  EXPECT_THAT(actions, Not(Contains(Action(StartZygote{}))));
  EXPECT_THAT(core.why_none(), HasSubstr("sitecustomize"));
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
}

TEST(StandbyCore, ATrialThatSomebodyKillsIsMadeAgain) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(ZygoteTimer{});
  EXPECT_THAT(core.step(ZygoteEnded{ExitStatus::killed(SIGKILL)}), ElementsAre(DisarmTimer{}));
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, ATrialThatHangsIsEnded) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(ZygoteTimer{});
  EXPECT_THAT(core.step(ZygoteTimer{}), AllOf(Contains(Action(EndZygote{})), tells("20 s")));
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
                             Contains(VariantWith<Tell>(Field(&Tell::is_warning, false)))))
      << "nobody has asked for it";
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{kModules, {"lightning"}}));
  EXPECT_THAT(core.left_out(), ElementsAre("lightning"));
}

TEST(StandbyCore, AProgramThatChangesWhatOnePackageSeesGetsStandbysWithoutIt) {
  Core core = ready();
  core.step(Taken{});
  core.step(Taken{});
  EXPECT_THAT(core.step(StartedAnew{"datasets", "the program sets HF_HOME"}),
              AllOf(Contains(Action(EndZygote{})), Contains(Action(EndBlanks{})),
                    Contains(Action(ArmTimer{kSettle})), tells("datasets no longer")));
  EXPECT_THAT(core.step(StartedAnew{"datasets", "the program sets HF_HOME"}), IsEmpty())
      << "the other rank";
  core.step(ZygoteTimer{});
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
  EXPECT_THAT(core.step(ZygoteTimer{}), AllOf(Contains(Action(EndZygote{})), tells("300 s")));
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
  core.step(Taken{});
  core.step(Taken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
}

TEST(StandbyCore, MakesNewOnesAfterARestart) {
  Core core = ready();
  core.step(Taken{});
  core.step(Taken{});
  EXPECT_EQ(core.waiting(), 0);
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(ForkBlank{}, ForkBlank{}));
  EXPECT_THAT(core.step(ZygoteTimer{}), IsEmpty());  // they are coming
}

TEST(StandbyCore, OneThatIsTakenInTheMiddleOfARoundIsReplaced) {
  Core core = ready();
  EXPECT_THAT(core.step(Taken{}), ElementsAre(ArmTimer{kRefill}));
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(ForkBlank{}));
}

TEST(StandbyCore, OnesThatARoundHasNotUsedEnd) {
  Core core = ready();
  core.step(Taken{});
  EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(EndBlanks{}, ArmTimer{kRefill}));
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(ForkBlank{}, ForkBlank{}));
}

TEST(StandbyCore, LostOnesAreReplacedAFewTimes) {
  Core core = ready();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(core.step(Lost{}), ElementsAre(ArmTimer{kRefill}));
    EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(ForkBlank{}));
    core.step(Waits{});
  }
  EXPECT_THAT(core.step(Lost{}), IsEmpty());
  EXPECT_EQ(core.waiting(), 1);
  EXPECT_THAT(core.step(Lost{}), tells("no standbys: processes forked for them end at once"));
  EXPECT_THAT(core.why_none(), HasSubstr("ulimit -u"));
}

TEST(StandbyCore, AProgramThatStartsAnewGetsNoMore) {
  Core core = ready();
  core.step(Taken{});
  EXPECT_THAT(core.step(StartedAnew{"torch", "the program sets OMP_NUM_THREADS"}),
              AllOf(Contains(Action(EndZygote{})), Contains(Action(EndBlanks{})),
                    tells("the program sets OMP_NUM_THREADS")));
  EXPECT_EQ(core.waiting(), 0);
  EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  EXPECT_THAT(core.step(StartedAnew{"torch", "again"}), IsEmpty());
}

TEST(StandbyCore, NothingIsLeftWhenTheJobIsOver) {
  for (Core core : {idle(), loading(), ready()}) {
    EXPECT_THAT(core.step(JobOver{}), ElementsAre(EndZygote{}, EndBlanks{}, DisarmTimer{}));
    EXPECT_THAT(core.step(Waits{}), ElementsAre(EndBlanks{}));
    EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  }
}

TEST(StandbyCore, AProgramThatSaysSoIsItsOwnZygote) {
  Core core = of_program();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(ZygoteTimer{}), ElementsAre(StartZygote{}, ArmTimer{kLoadLimit}));
  EXPECT_THAT(core.step(ZygoteHeld{}), ElementsAre(LoadModules{}));
  EXPECT_THAT(core.step(ZygoteReady{}), ElementsAre(DisarmTimer{}, ForkBlank{}, ForkBlank{}));
  core.step(Waits{});
  EXPECT_THAT(core.step(Waits{}), tells("with their libraries loaded"));
}

TEST(StandbyCore, AProgramThatHasNotSaidSoIsAskedLater) {
  Core core = of_program();
  core.step(RoundRuns{});
  EXPECT_THAT(core.step(ZygoteTimer{true, "it has not said so"}),
              ElementsAre(ArmTimer{kSettle * 2}));
  const auto actions = core.step(ZygoteTimer{false, "it has not said so"});
  EXPECT_THAT(actions, AllOf(Contains(Action(ArmTimer{kSettle * 4})), tells("it has not said so")));
  EXPECT_EQ(core.why_none(), "it has not said so");
  EXPECT_THAT(core.step(ZygoteTimer{false, "it has not said so"}),
              ElementsAre(ArmTimer{kSettle * 8}));
  EXPECT_THAT(core.step(ZygoteTimer{}), Contains(Action(StartZygote{})));
  EXPECT_EQ(core.why_none(), "");
}

TEST(StandbyCore, AProgramThatCannotWaitIsNotTriedAgain) {
  for (const Event& event : {Event(ZygoteUnfit{"", "the program starts a thread"}),
                             Event(ZygoteTimer{}), Event(ZygoteEnded{ExitStatus::exited(3)})}) {
    Core core = of_program();
    core.step(RoundRuns{});
    core.step(ZygoteTimer{});
    EXPECT_THAT(core.step(event),
                AllOf(tells("no standbys: the program"), Not(Contains(Action(StartZygote{})))));
    EXPECT_THAT(core.step(RoundRuns{}), IsEmpty());
  }
}

TEST(StandbyCore, AChangedProgramGetsItsOwn) {
  Core while_loading = of_program();
  while_loading.step(RoundRuns{});
  while_loading.step(ZygoteTimer{});
  Core while_ready = while_loading;
  while_ready.step(ZygoteReady{});
  while_ready.step(Waits{});
  for (Core core : {while_loading, while_ready}) {
    EXPECT_THAT(core.step(ProgramChanged{"/bin/train"}),
                AllOf(Contains(Action(EndZygote{})), Contains(Action(EndBlanks{})),
                      Contains(Action(DisarmTimer{})), tells("/bin/train has changed")));
    EXPECT_EQ(core.waiting(), 0);
    EXPECT_THAT(core.step(RoundRuns{}), ElementsAre(ArmTimer{kSettle}));
  }
}

TEST(StandbyCore, AZygoteThatCannotBeStarted) {
  Core core = idle();
  core.step(RoundRuns{});
  core.step(ZygoteTimer{});
  EXPECT_THAT(core.step(ZygoteCannotStart{"no process may be started"}),
              tells("no standbys: no process may be started"));
}

// ---- standbys for ranks

const auto made = [](int local_rank) { return VariantWith<MakeForRank>(MakeForRank{local_rank}); };
const auto armed = [](std::chrono::milliseconds after) {
  return VariantWith<ArmTimer>(ArmTimer{after, TimerOf::kRanks});
};
const auto told = [](const std::string& part) {
  return VariantWith<Tell>(::testing::Field(&Tell::sentence, HasSubstr(part)));
};
const auto ends_all = VariantWith<EndForRanks>(EndForRanks{});
const auto disarms = VariantWith<DisarmTimer>(DisarmTimer{TimerOf::kRanks});

class StandbysForRanks : public ::testing::Test {
 protected:
  std::vector<Action> on(const Event& event) { return core_.step(event); }
  // All of two ranks wait.
  void fill() {
    on(RoundBegins{});
    on(AllCanRecover{});
    on(RankTimer{});
    on(Waits{0});
    on(Waits{1});
    ASSERT_EQ(core_.waiting_for_ranks(), 2);
  }
  Core core_{{.wanted = 0, .modules = {}, .why_none = "", .prepares = true},
             /*local_world_size=*/2};
};

TEST_F(StandbysForRanks, MakesOneAfterTheOtherWhenAllCanRecover) {
  EXPECT_THAT(on(RoundBegins{}), IsEmpty());
  EXPECT_THAT(on(RankTimer{}), IsEmpty());
  EXPECT_THAT(on(AllCanRecover{}), ElementsAre(armed(kSettleInSteps)));
  EXPECT_THAT(on(AllCanRecover{}), IsEmpty());
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_TRUE(core_.waits_for(0));
  EXPECT_FALSE(core_.waits_for(1));
  EXPECT_THAT(on(Waits{1}), ElementsAre(disarms, told("workers are replaced in place")));
  EXPECT_EQ(core_.why_none_for_ranks(), "");
}

TEST_F(StandbysForRanks, WaitForABlankOneButNotForEver) {
  core_ = Core({.wanted = 1, .modules = kModules, .why_none = "", .prepares = true}, 2);
  on(RoundBegins{});
  on(RoundRuns{});
  EXPECT_TRUE(core_.is_blank_coming());
  EXPECT_THAT(on(AllCanRecover{}), ElementsAre(ArmTimer{kSettleInSteps}, armed(kSettleInSteps)));
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kRefill)));
  on(ZygoteTimer{});
  on(ZygoteHeld{});
  on(ZygoteEnded{ExitStatus::killed(SIGKILL)});
  on(ZygoteReady{});
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kRefill)));
  on(Waits{});
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Taken{}), ElementsAre(ArmTimer{kRefill})) << "it is made from the blank one";
  EXPECT_THAT(on(Waits{0}), ElementsAre(armed(kRefill)));
  for (int i = 1; i < kForkLimit / kRefill; ++i) {
    EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kRefill))) << i;
  }
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_THAT(on(Waits{1}), ElementsAre(disarms, told("workers are replaced in place")));
}

TEST_F(StandbysForRanks, OnAGpuWithoutRoomForTwoTheyWaitBeforeTheirSetUp) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  const link::GpuUse has_room{.id = 1, .index = 0, .free_bytes = 9 * kGiB, .used_bytes = 2 * kGiB};
  const link::GpuUse has_none{.id = 2, .index = 1, .free_bytes = 2 * kGiB, .used_bytes = 2 * kGiB};
  link::GpuUse unknown = has_none;
  unknown.used_bytes = 0;
  on(RoundBegins{});
  on(AllCanRecover{});
  EXPECT_THAT(on(RankTimer{.gpus = {unknown, has_none}}), ElementsAre(armed(kRefill)))
      << "the worker has not said what it takes";
  EXPECT_THAT(on(RankTimer{.gpus = {has_room, has_none}}),
              ElementsAre(armed(kSetUpLimit), VariantWith<MakeForRank>(MakeForRank{
                                                  0, link::Preparation::kWhole, has_room})));
  EXPECT_EQ(core_.why_unprepared(), "");
  EXPECT_THAT(on(Waits{0}),
              ElementsAre(armed(kSetUpLimit), VariantWith<MakeForRank>(MakeForRank{
                                                  1, link::Preparation::kContext, has_none})));
  EXPECT_THAT(on(Waits{1}),
              ElementsAre(disarms, told("the program's set-up is made then: GPU 1 has "
                                        "2.0 GiB free")));
  EXPECT_THAT(core_.why_unprepared(), HasSubstr("GPU 1 has 2.0 GiB free"));
  EXPECT_FALSE(core_.is_unprepared(0));
  EXPECT_TRUE(core_.is_unprepared(1));
  // What a newcomer says is less by what is taken by the standby that was there.
  on(Taken{1});
  link::GpuUse less = has_none;
  less.free_bytes = 0;
  EXPECT_THAT(on(RankTimer{.gpus = {has_room, less}}),
              ElementsAre(armed(kSetUpLimit), VariantWith<MakeForRank>(MakeForRank{
                                                  1, link::Preparation::kContext, has_none})));
  on(RoundBegins{});
  EXPECT_EQ(core_.why_unprepared(), "");
}

TEST_F(StandbysForRanks, NoneAreMadeWhereNoneAreWanted) {
  Core core({.wanted = 0, .modules = {}, .why_none = "", .prepares = false}, 2);
  EXPECT_THAT(core.step(RoundBegins{}), IsEmpty());
  EXPECT_THAT(core.step(AllCanRecover{}), IsEmpty());
  EXPECT_THAT(core.step(WorkerCannot{"why"}), IsEmpty());
  EXPECT_THAT(core.step(Waits{0}), IsEmpty());
  EXPECT_FALSE(core.prepares());
}

TEST_F(StandbysForRanks, OneThatWasTakenIsMadeAnewWhenTheReplacementIsOver) {
  fill();
  EXPECT_THAT(on(Taken{1}), ElementsAre(armed(kRefill)));
  EXPECT_FALSE(core_.waits_for(1));
  EXPECT_TRUE(core_.waits_for(0));
  EXPECT_THAT(on(RankTimer{.is_replacing = true}), ElementsAre(armed(kRefill)));
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(1)));
  EXPECT_THAT(on(Taken{0}), IsEmpty()) << "one at a time";
  EXPECT_THAT(on(Waits{1}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(disarms)) << "it was told once";
}

TEST_F(StandbysForRanks, TwoThatWereTakenAreMadeOneAfterTheOther) {
  fill();
  on(Taken{0});
  EXPECT_THAT(on(Taken{1}), IsEmpty());
  EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(0)));
  EXPECT_THAT(on(Waits{0}), ElementsAre(armed(kSetUpLimit), made(1)));
}

TEST_F(StandbysForRanks, ASetUpThatFailsIsSaidOnceAndNotTriedAgainInThisRound) {
  on(RoundBegins{});
  on(AllCanRecover{});
  on(RankTimer{});
  on(Waits{0});
  EXPECT_THAT(
      on(Lost{
          .local_rank = 1, .status = ExitStatus::exited(1), .last_words = "RuntimeError: no data"}),
      ElementsAre(
          ends_all, disarms,
          told("cannot be replaced in place: a standby that made the program's set-up without "
               "the others ended with exit code 1: RuntimeError: no data")));
  EXPECT_THAT(core_.why_none_for_ranks(), HasSubstr("no data"));
  EXPECT_FALSE(core_.waits_for(0));
  for (const Event& event :
       std::vector<Event>{RankTimer{}, AllCanRecover{}, Waits{0}, Taken{0}, StandbyCannot{"x"},
                          WorkerCannot{"x"}, CannotMake{"x"}}) {
    EXPECT_THAT(on(event), IsEmpty());
  }
  EXPECT_THAT(on(RoundBegins{}), IsEmpty());
  EXPECT_EQ(core_.why_none_for_ranks(), "");
  on(AllCanRecover{});
  on(RankTimer{});
  EXPECT_THAT(
      on(Lost{
          .local_rank = 0, .status = ExitStatus::exited(1), .last_words = "RuntimeError: no data"}),
      ElementsAre(ends_all, disarms))
      << "the same sentence again";
}

TEST_F(StandbysForRanks, WhoSaysThatItCannotIsQuoted) {
  on(RoundBegins{});
  EXPECT_THAT(on(WorkerCannot{"a hook keeps state"}),
              ElementsAre(told("a hook keeps state; when one")));
  fill();
  EXPECT_THAT(on(StandbyCannot{"its loader has workers"}),
              ElementsAre(ends_all, disarms, told("its loader has workers")));
}

TEST_F(StandbysForRanks, AReplacementThatWasWrongIsTheLastOfTheJob) {
  fill();
  EXPECT_THAT(on(WorkerCannot{"weights differ", /*nor_later=*/true}),
              ElementsAre(ends_all, disarms, told("weights differ; when one")));
  EXPECT_TRUE(core_.are_ranks_given_up());
  for (const auto& event : std::vector<Event>{RoundOver{}, RoundBegins{}, AllCanRecover{}}) {
    EXPECT_THAT(on(event), IsEmpty());
    EXPECT_EQ(core_.why_none_for_ranks(), "weights differ");
  }
}

TEST_F(StandbysForRanks, ALimitOnTheSetUp) {
  on(RoundBegins{});
  on(AllCanRecover{});
  on(RankTimer{});
  EXPECT_THAT(on(RankTimer{}), ElementsAre(ends_all, disarms, told("in 5 minutes")));
}

TEST_F(StandbysForRanks, OneThatCannotBeStartedIsTheEnd) {
  on(RoundBegins{});
  on(AllCanRecover{});
  on(RankTimer{});
  EXPECT_THAT(on(CannotMake{"memory is short"}),
              ElementsAre(ends_all, disarms, told("memory is short")));
}

TEST_F(StandbysForRanks, AKillIsNoVerdictButForTheThird) {
  on(RoundBegins{});
  on(AllCanRecover{});
  on(RankTimer{});
  for (int i = 1; i < kKillsMax; ++i) {
    EXPECT_THAT(on(Lost{.local_rank = 0, .status = ExitStatus::killed(SIGKILL), .last_words = ""}),
                ElementsAre(armed(kRefill)));
    EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(0)));
  }
  EXPECT_THAT(on(Lost{.local_rank = 0, .status = ExitStatus::killed(SIGKILL), .last_words = ""}),
              ElementsAre(ends_all, disarms, told("SIGKILL")));
}

TEST_F(StandbysForRanks, OneThatEndsWhileItWaitsIsMadeAnewAFewTimes) {
  fill();
  for (int i = 0; i < kLostMax; ++i) {
    EXPECT_THAT(on(Lost{.local_rank = 1, .status = ExitStatus::killed(SIGKILL), .last_words = ""}),
                ElementsAre(armed(kRefill)));
    EXPECT_THAT(on(RankTimer{}), ElementsAre(armed(kSetUpLimit), made(1)));
    on(Waits{1});
  }
  EXPECT_THAT(on(Lost{.local_rank = 1, .status = ExitStatus::killed(SIGKILL), .last_words = ""}),
              ElementsAre(ends_all, disarms, told("ended while they waited")));
}

TEST_F(StandbysForRanks, OneThatEndsWhileAnotherIsMadeFollowsIt) {
  on(RoundBegins{});
  on(AllCanRecover{});
  on(RankTimer{});
  on(Waits{0});
  EXPECT_THAT(on(Lost{.local_rank = 0, .status = ExitStatus::killed(SIGKILL), .last_words = ""}),
              IsEmpty());
  EXPECT_THAT(on(Waits{1}), ElementsAre(armed(kSetUpLimit), made(0)));
}

TEST_F(StandbysForRanks, TheyEndWithTheRoundAndWithTheJob) {
  fill();
  EXPECT_THAT(on(RoundOver{}), ElementsAre(ends_all, disarms));
  EXPECT_THAT(on(RoundOver{}), IsEmpty());
  EXPECT_EQ(core_.waiting_for_ranks(), 0);
  fill();
  EXPECT_THAT(on(JobOver{}),
              ElementsAre(ends_all, disarms, EndZygote{}, EndBlanks{}, DisarmTimer{}));
  EXPECT_THAT(on(RoundBegins{}), IsEmpty());
  EXPECT_THAT(on(AllCanRecover{}), IsEmpty());
}

}  // namespace
}  // namespace ddprun::agent::standby
