// A user's program, and the same program made distributed with the headers and the README alone (tests/user_program): few lines
// differ, its ranks are replaced in place with the same bits, and Python opens its checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>

#include "tests/support/deaths_in_place.h"
#include "tests/support/source_difference.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr seconds kTime{240};
constexpr double kLearntPercent = 90;
constexpr int kAddedLinesMax = 20;

double percent_in(const std::string& output) {
  std::smatch found;
  return std::regex_search(output, found, std::regex(R"(([\d.]+) % of new numbers are right\n)"))
             ? std::stod(found[1])
             : 0;
}

Command on_two_ranks(const std::string& program, const std::string& folder,
                     std::vector<std::string> options = {}) {
  options.insert(options.begin(), "--nproc-per-node=2");
  return ddprun(options, {program, folder});
}

TEST(UserProgram, AtMostTwentyLinesAreAddedToMakeTheProgramDistributed) {
  const std::string folder = DDPRUN_SOURCE_DIR "/tests/user_program/";
  const auto lines =
      difference(code_of(folder + "transformer_single.cpp"), code_of(folder + "transformer.cpp"));
  const auto added = std::ranges::count_if(
      lines, [](const std::string& line) { return line[0] == '+' && line.size() > 1; });
  EXPECT_GT(added, 0);
  EXPECT_LE(added, kAddedLinesMax);
}

TEST(UserProgram, LearnsInOneProcessAsWritten) {
  const TemporaryTree folder;
  Job job({DDPRUN_TRANSFORMER_SINGLE, folder.path()}, {.environment = {{"OMP_NUM_THREADS", "1"}}});
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_GT(percent_in(job.out()), kLearntPercent) << job.out();
}

TEST(UserProgram, EndsWithTheSameBitsWhenRanksAreReplacedAndPythonOpensTheCheckpoint) {
  const TemporaryTree undisturbed;
  Job plain(on_two_ranks(DDPRUN_TRANSFORMER, undisturbed.path()));
  ASSERT_EQ(plain.wait(kTime), exited(0)) << plain.err();
  EXPECT_GT(percent_in(plain.out()), kLearntPercent) << plain.out();

  const TemporaryTree folder;
  const DeathsInPlace plan({"forward:40:1", "batch:90:0"});
  auto options = plan.options();
  options.push_back("--max-restarts=10");
  Job job(on_two_ranks(DDPRUN_RECORDED_TRANSFORMER, folder.path(), options), plan.setup());
  ASSERT_NO_FATAL_FAILURE(plan.let_happen(job, 2, kTime));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_EQ(count_of("\"event\":\"restarted\"", plan.events()), 2U) << job.err();
  EXPECT_THAT(plan.events(), Not(HasSubstr("\"round\":1"))) << job.err();
  EXPECT_EQ(job.out(), plain.out());
  EXPECT_TRUE(end_with_the_same_bytes(undisturbed.path(), folder.path())) << job.err();

  const Told python =
      run_to_its_end({DDPRUN_PYTHON, DDPRUN_SOURCE_DIR "/tests/user_program/open_checkpoint.py",
                      folder / checkpoints_in(folder.path()).back()});
  ASSERT_EQ(python.code, 0) << python.err;
  EXPECT_GT(percent_in(python.out), kLearntPercent) << python.out;
}

}  // namespace
}  // namespace ddprun::test
