// The example resume_elastic does what its first comment says: loses a worker, is started again, shrinks and
// grows, and ends with the line that it states. (record_steps.cpp, in its program, kills the worker and holds the steps.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/cluster.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using ::testing::_;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Pair;

constexpr seconds kTime{240};

Command resume_elastic(const std::string& folder, const std::vector<std::string>& more = {}) {
  Command command{DDPRUN_RESUME_ELASTIC, "--checkpoint-dir=" + folder};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

// The last rank dies before this step, in the job's first life.
const std::map<std::string, std::string> kDies{{"DDPRUN_DEATHS", "batch:63:1"}};

std::string last_line_of(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t before = text.rfind('\n', end);
  return text.substr(before == std::string::npos ? 0 : before + 1, end - before);
}

auto ends_well(const std::string& worlds) {
  return MatchesRegex("accuracy 9[5-9]\\.[0-9] % after 300 steps by " + worlds + " ranks[^a-z]*");
}

TEST(ResumeElastic, GoesOnAfterTheDeathOfAWorker) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2", "--max-restarts=3"}, resume_elastic(folder.path())),
          {.environment = kDies});
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("rank 1 dies: batch"));
  EXPECT_THAT(last_line_of(job.out()), ends_well("2 -> 2")) << job.out();
}

TEST(ResumeElastic, GoesOnWithAnotherNumberOfRanks) {
  const TemporaryTree folder;
  {
    Job dies(ddprun({"--nproc-per-node=2"}, resume_elastic(folder.path())), {.environment = kDies});
    EXPECT_NE(dies.wait(kTime), exited(0)) << dies.err();
  }
  Job job(ddprun({"--nproc-per-node=3"}, resume_elastic(folder.path())));
  ASSERT_EQ(job.wait(kTime), exited(0)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("with 3 ranks; it was saved by 2"));
  EXPECT_THAT(last_line_of(job.out()), ends_well("2 -> 3")) << job.out();
}

TEST(ResumeElastic, DiesAndGrows) {
  const TemporaryTree folder;
  Cluster cluster({.nnodes = "1:2",
                   .nproc = 2,
                   .options = {"--max-restarts=3"},
                   .environment = {{"OMP_NUM_THREADS", "1"},
                                   {"DDPRUN_DEATHS", "batch:63:1"},
                                   {"DDPRUN_HOLD_AT", "80:2"}},
                   .program = resume_elastic(folder.path())});
  cluster.start(0);
  ASSERT_TRUE(eventually([&] { return last_step_in(folder.path()) >= 75; }, seconds(60)))
      << cluster.told();
  cluster.start(1);
  EXPECT_THAT(cluster.wait(kTime), Each(Pair(_, exited(0)))) << cluster.told();
  EXPECT_THAT(last_line_of(cluster[0].out()), ends_well("2 -> 2 -> 4")) << cluster.told();
  EXPECT_THAT(cluster.left_over(), IsEmpty());
}

TEST(ResumeElastic, SaysWhichBatchSizeCannotBeDivided) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"}, resume_elastic(folder.path(), {"--batch-size=5"})));
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("--batch-size 5 cannot be divided by 2 ranks"));
}

}  // namespace
}  // namespace ddprun::test
