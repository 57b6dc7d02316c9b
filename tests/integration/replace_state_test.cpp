// A rank is replaced in place in trainings whose loops have more state than they give to their Recoverable. The
// training ends with the bits of an undisturbed one: either the state came along, or the ranks were compared, a sentence
// named what differs, and all ranks began anew.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>

#include "tests/support/deaths_in_place.h"
#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds kTime{120};

Command training(const std::string& way, std::vector<std::string> options) {
  options.insert(options.begin(), {"--nproc-per-node=2", "--max-restarts=10", "--no-python"});
  return ddprun(options, {DDPRUN_VARIED_TRAINING, way});
}

std::string undisturbed(const std::string& way) {
  Job job(training(way, {}));
  EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
  return job.out();
}

struct Told {
  std::string out, err, events;
};
Told with_death(const std::string& way, const std::string& death) {
  const DeathsInPlace plan({death});
  Job job(training(way, plan.options()), plan.setup());
  plan.let_happen(job, 2, kTime);
  EXPECT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(plan.events(), HasSubstr("\"how\":\"replaced\""));
  return {job.out(), job.err(), plan.events()};
}

// POINT:STEP:RANK: in a step, and between two, of rank 0 and of another rank.
constexpr const char* kDeaths[] = {"forward:7:1", "after_step:7:1", "forward:9:0",
                                   "after_step:6:0"};

class StateOfALoop : public ::testing::TestWithParam<const char*> {};

TEST_P(StateOfALoop, ComesAlong) {
  const std::string expected = undisturbed(GetParam());
  for (const char* const death : kDeaths) {
    const Told told = with_death(GetParam(), death);
    EXPECT_EQ(told.out, expected) << death << "\n" << told.err;
    EXPECT_THAT(told.events, Not(HasSubstr("\"round\":1"))) << death << "\n" << told.err;
  }
}
INSTANTIATE_TEST_SUITE_P(Ways, StateOfALoop,
                         ::testing::Values("rate_decays_between_steps", "rate_decays_in_step",
                                           "momentum_in_step", "parameter_beside_the_model",
                                           "buffer_of_new_tensors", "one_struct"),
                         [](const auto& way) { return std::string(way.param); });

struct Difference {
  const char* way;
  const char* text;
};
std::ostream& operator<<(std::ostream& out, const Difference& difference) {
  return out << difference.way;
}

class DifferenceOfRanks : public ::testing::TestWithParam<Difference> {};

TEST_P(DifferenceOfRanks, IsToldAndAllBeginAnew) {
  const std::string expected = undisturbed(GetParam().way);
  for (const char* const death : {"forward:7:1", "after_step:7:0"}) {
    const Told told = with_death(GetParam().way, death);
    EXPECT_EQ(told.out, expected) << death << "\n" << told.err;
    EXPECT_THAT(told.err, HasSubstr(GetParam().text)) << death;
    EXPECT_THAT(told.err, HasSubstr("after a rank was replaced in step")) << death;
    EXPECT_THAT(told.err, HasSubstr("to the end of this job")) << death;
    EXPECT_THAT(told.events, HasSubstr("\"round\":1")) << death;
  }
}
INSTANTIATE_TEST_SUITE_P(
    Ways, DifferenceOfRanks,
    ::testing::Values(
        Difference{"rate_from_own_counter", "option lr of parameter group 0 is 0.00"},
        Difference{"schedule_not_kept", "option lr of parameter group 0 is 0.00"},
        Difference{"part_restored_by_half",
                   "rank's own part 0 given to keep() is not restored by rank 0 on rank 0"},
        Difference{"one_element", "model.first.weight is [8, 8] float with the sum "}),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ddprun::test
