// The example `collectives`, started in every supported way: alone, under ddprun, as tasks of a
// Slurm step, by hand; and the messages if it is started wrongly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/net/listener.h"
#include "tests/support/job.h"
#include "tests/support/temporary_tree.h"

namespace ddprun::test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kLastLine = "all collectives gave what they should\n";

TEST(CollectivesExample, RunsAloneAndSaysSo) {
  Job job({DDPRUN_COLLECTIVES});
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("all_reduce"), EndsWith(kLastLine)));
}

TEST(CollectivesExample, RunsOnThreeRanksUnderDdprun) {
  Job job(ddprun({"--nproc-per-node=3"}, {DDPRUN_COLLECTIVES, "gloo"}));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("all_reduce           [30, 33]\n"), EndsWith(kLastLine)));
}

TEST(CollectivesExample, StartsItsOwnWorkersWhereNoLauncherDid) {
  const std::string three = "DDPRUN_NPROC_PER_NODE=3";
  Job job({"env", three, DDPRUN_COLLECTIVES, "gloo"});
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("all_reduce           [30, 33]\n"), EndsWith(kLastLine)));
  Command two = ddprun({"--nproc-per-node=2"}, {DDPRUN_COLLECTIVES, "gloo"});
  two.insert(two.begin(), {"env", three});
  Job under_a_launcher(two);
  ASSERT_EQ(under_a_launcher.wait(), exited(0)) << under_a_launcher.err();
  EXPECT_THAT(under_a_launcher.out(), AllOf(Not(HasSubstr("[30, 33]")), EndsWith(kLastLine)));
}

TEST(CollectivesExample, SaysWhatIsMissingWhereThereIsNoLauncher) {
  const TemporaryTree folder;
  const std::filesystem::path alone = std::filesystem::path(folder.path()) / "collectives";
  std::filesystem::copy_file(DDPRUN_COLLECTIVES, alone);
  Job job({"env", "PATH=/nowhere", "DDPRUN_NPROC_PER_NODE=3", alone.string()});
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("there is no " + (alone.parent_path() / "ddprun").string() +
                                   " and no ddprun on PATH"));
}

TEST(CollectivesExample, RunsOverSharedMemory) {
  Job job(ddprun({"--nproc-per-node=3"}, {DDPRUN_COLLECTIVES, "shm"}));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), AllOf(HasSubstr("all_reduce           [30, 33]\n"), EndsWith(kLastLine)));
  EXPECT_THAT(job.err(), Not(HasSubstr("Gloo instead")));
}

TEST(CollectivesExample, AloneItUsesTheBackendOfSharedMemoryWithoutAny) {
  Job job({DDPRUN_COLLECTIVES, "shm"});
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), EndsWith(kLastLine));
  EXPECT_THAT(job.err(), Not(HasSubstr("Gloo instead")));
}

struct Apart {
  const char* space;
  const char* options;  // of unshare
};
void PrintTo(const Apart& apart, std::ostream* out) { *out << apart.space; }

class RanksApart : public testing::TestWithParam<Apart> {};
INSTANTIATE_TEST_SUITE_P(InAnother, RanksApart,
                         testing::Values(Apart{"mount", "--mount"},
                                         Apart{"user", "--user --map-root-user"},
                                         Apart{"process", "--pid --fork --kill-child"}),
                         [](const auto& tested) { return std::string(tested.param.space); });

TEST_P(RanksApart, SaySoOnceAndUseGloo) {
  const std::string unshare = std::string("unshare ") + GetParam().options + " ";
  Job probe({"sh", "-c", unshare + "true"});
  if (probe.wait() != exited(0)) GTEST_SKIP() << "no such namespace can be made here";
  const std::string program = DDPRUN_COLLECTIVES;
  Job job(ddprun({"--nproc-per-node=2"}, {"sh", "-c",
                                          "test $LOCAL_RANK = 0 || exec " + unshare + program +
                                              " shm; exec " + program + " shm"}));
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), EndsWith(kLastLine));
  const std::string said =
      std::string(
          "no shared memory, Gloo instead: ranks 0 and 1 are on one machine but not of one ") +
      GetParam().space + " namespace";
  const std::size_t first = job.err().find(said);
  ASSERT_NE(first, std::string::npos) << job.err();
  EXPECT_EQ(job.err().find(said, first + 1), std::string::npos) << "once, not per rank";
}

TEST(CollectivesExample, WritesALogPerRankWhenAsked) {
  const TemporaryTree folder;
  Job job(ddprun({"--nproc-per-node=2"}, {DDPRUN_COLLECTIVES}),
          {.environment = {{"DDPRUN_LOG_DIR", folder / "logs"}}});
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_TRUE(std::filesystem::exists(folder / "logs/rank0.log"));
  EXPECT_TRUE(std::filesystem::exists(folder / "logs/rank1.log"));
}

// As srun starts two tasks on one node.
TEST(CollectivesExample, RunsAsTasksOfASlurmStep) {
  const rdzv::Listener port = rdzv::reserve_port({}).value();
  std::vector<std::unique_ptr<Job>> tasks;
  for (int task = 0; task < 2; ++task) {
    JobSetup setup;
    setup.environment = {{"SLURM_JOB_ID", "7"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", std::to_string(task)},
                         {"SLURM_STEP_NUM_TASKS", "2"},
                         {"SLURM_LOCALID", std::to_string(task)},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2"},
                         {"SLURM_STEP_NODELIST", "localhost"},
                         {"MASTER_PORT", std::to_string(port.bound.port)}};
    tasks.push_back(std::make_unique<Job>(Command{DDPRUN_COLLECTIVES}, setup));
  }
  for (const auto& task : tasks) ASSERT_EQ(task->wait(), exited(0)) << task->err();
  EXPECT_THAT(tasks[0]->out(), EndsWith(kLastLine));
}

// Exit code and what stderr says.
void expect_refused(const std::map<std::string, std::string>& environment, const Command& arguments,
                    const std::string& said) {
  Command command{DDPRUN_COLLECTIVES};
  command.insert(command.end(), arguments.begin(), arguments.end());
  Job job(command, {.environment = environment});
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr(said));
}

TEST(CollectivesExample, WrongStartsAreOneSentenceAndExitCodeTwo) {
  const rdzv::Listener taken = rdzv::open_listener({}).value();
  const std::string port = std::to_string(taken.bound.port);
  const std::map<std::string, std::string> whole = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  expect_refused({}, {"mpi"}, "there is no backend 'mpi'");
  auto variables = whole;
  variables["RANK"] = "2";
  expect_refused(variables, {}, "RANK=2 contradicts WORLD_SIZE=2");
  variables = whole;
  variables.erase("MASTER_PORT");
  expect_refused(variables, {}, "MASTER_PORT is not");
  expect_refused(whole, {}, "rank 0 could not open the group's store at port " + port);
  expect_refused({{"DDPRUN_LOG_DIR", "/proc/none"}}, {}, "/proc/none/rank0.log");
  expect_refused({{"DDPRUN_LOG_LEVEL", "loud"}}, {}, "DDPRUN_LOG_LEVEL is 'loud'");
  expect_refused({{"CUDA_VISIBLE_DEVICES", ""}}, {"nccl"}, "the backend nccl needs a GPU");
}

}  // namespace
}  // namespace ddprun::test
