// ddprun under a real Slurm of two nodes: what srun and sbatch start, what they end, and what is left
// of it. The cases share the cluster, and each leaves it empty.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "rendezvous/base/slurm.h"
#include "tests/support/slurm_cluster.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kPreempted = 113;

class Slurm : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (SlurmCluster::obstacle()) return;
    cluster_ = new SlurmCluster;
    ASSERT_TRUE(cluster_->is_ready()) << cluster_->told();
  }
  static void TearDownTestSuite() {
    delete cluster_;
    cluster_ = nullptr;
  }
  void SetUp() override {
    if (const auto& obstacle = SlurmCluster::obstacle()) GTEST_SKIP() << *obstacle;
  }
  void TearDown() override {
    if (cluster_ == nullptr) return;
    EXPECT_THAT(cluster_->clear(), IsEmpty());
    if (HasFailure()) std::fputs(cluster_->told().c_str(), stderr);
  }

  static SlurmCluster& slurm() { return *cluster_; }

  // Two nodes with two workers each, which is what Slurm gives them CPUs for.
  static Command on_two_nodes(const Command& launcher, const std::vector<std::string>& more = {}) {
    std::vector<std::string> options{"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2"};
    options.insert(options.end(), more.begin(), more.end());
    return SlurmCluster::srun(options, launcher);
  }
  static bool run(const TempDir& folder, std::size_t workers, int round = 0) {
    return stamps(folder.path(), round).size() == workers;
  }
  // As a line of a script.
  static std::string words_of(const Command& command) {
    std::string line;
    for (const std::string& word : command) line += "'" + word + "' ";
    return line;
  }
  std::vector<std::string> left_over() const {
    eventually([] { return slurm().job_processes().empty(); }, seconds(10));
    return slurm().job_processes();
  }
  // The processes of that name on both nodes.
  static std::vector<pid_t> ddpruns(const Job& job) {
    std::vector<pid_t> found;
    for (const pid_t pid : job.processes()) {
      const auto info = process(pid);
      const auto parent = info ? process(info->parent) : std::nullopt;
      if (parent && info->name == "ddprun" && parent->name != "ddprun") found.push_back(pid);
    }
    return found;
  }

  static SlurmCluster* cluster_;
};
SlurmCluster* Slurm::cluster_ = nullptr;

// --- what srun starts

TEST_F(Slurm, SrunOfTwoNodesNeedsNoOption) {
  const TempDir folder;
  Job job(on_two_nodes(ddprun({}, meeting_worker({"environment", folder / "{rank}"}))),
          slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) {
    auto variables = environment_in(folder / std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], "4");
    EXPECT_EQ(variables["SLURMD_NODENAME"], SlurmCluster::host(rank / 2));
    EXPECT_EQ(variables["GROUP_RANK"], std::to_string(rank / 2));
    EXPECT_EQ(variables["LOCAL_RANK"], std::to_string(rank % 2));
    EXPECT_EQ(variables["MASTER_ADDR"], SlurmCluster::host(0));
    const std::string job_id = variables["SLURM_JOB_ID"];
    EXPECT_EQ(variables["MASTER_PORT"], std::to_string(slurm_port(std::stoull(job_id), 0)));
    EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], job_id + ".0");
  }
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, TheDryRunNamesSlurmAndItsVariables) {
  Job job(on_two_nodes(ddprun({"--dry-run"}, worker({"exit", "0"})), {"--label"}), slurm().setup());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.out(), ContainsRegex("1:   site +Slurm\n"));
  EXPECT_THAT(job.out(), ContainsRegex("1:   nnodes +2 +SLURM_STEP_NUM_NODES\n"));
  EXPECT_THAT(job.out(), ContainsRegex("1:   node-rank +1 +SLURM_NODEID\n"));
  EXPECT_THAT(job.out(),
              ContainsRegex("1:   master-addr +node0 +the first of SLURM_STEP_NODELIST\n"));
}

TEST_F(Slurm, AJobsStepsAndShellsAreToldApart) {
  const TempDir folder;
  // The script's shell is on one node of two; a step of one node is a job of its own.
  const std::string job = slurm().sbatch(
      {"--wait", "--nodes=2", "--cpus-per-task=2", "--output=" + (folder / "out")},
      words_of(ddprun({"--dry-run"}, {"true"})) + "\necho exit code $?\n" +
          "srun --nodes=1 --ntasks=1 --cpus-per-task=2 " +
          words_of(ddprun({}, worker({"environment", folder / "step"}))) + "\n" +  //
          words_of(ddprun({"--nnodes=1"}, worker({"environment", folder / "shell"}))));
  const std::string out = read_file(folder / "out");
  EXPECT_THAT(out, HasSubstr("this job has 2 nodes (SLURM_JOB_NUM_NODES), and ddprun was started "
                             "on the first of them only; write srun"));
  EXPECT_THAT(out, HasSubstr("exit code 2\n"));
  for (const std::string where : {"step", "shell"}) {
    EXPECT_EQ(environment_in(folder / where)["WORLD_SIZE"], "2") << where << "\n" << out;
    EXPECT_EQ(environment_in(folder / where)["MASTER_ADDR"], "127.0.0.1") << where;
  }
  EXPECT_EQ(environment_in(folder / "step")["TORCHELASTIC_RUN_ID"], job + ".0");
  EXPECT_EQ(environment_in(folder / "shell")["TORCHELASTIC_RUN_ID"], job);
}

TEST_F(Slurm, ABatchScriptOfOneNodeNeedsNoSrun) {
  const TempDir folder;
  const std::string job =
      slurm().sbatch({"--wait", "--nodes=1", "--cpus-per-task=2", "--output=" + (folder / "out")},
                     words_of(ddprun({}, worker({"environment", folder / "{rank}"}))));
  auto variables = environment_in(folder / "1");
  EXPECT_EQ(variables["WORLD_SIZE"], "2") << read_file(folder / "out");
  EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], job);
  EXPECT_EQ(read_file(folder / "out"), "");
}

TEST_F(Slurm, AShellOfSallocIsSentToSrun) {
  Job one(
      {"salloc", "--nodes=1", "--quiet", "sh", "-c", words_of(ddprun({}, worker({"exit", "0"})))},
      slurm().setup());
  EXPECT_EQ(one.wait(), exited(0)) << one.err();
  EXPECT_THAT(one.err(),
              ContainsRegex("warning: this shell is on no node of Slurm's job [0-9]+, so "
                            "the workers will run on this machine; write srun"));
  Job two(
      {"salloc", "--nodes=2", "--quiet", "sh", "-c", words_of(ddprun({}, worker({"exit", "0"})))},
      slurm().setup());
  EXPECT_EQ(two.wait(), exited(2)) << two.err();
  EXPECT_THAT(two.err(), HasSubstr("in a shell on none of them; write srun"));
}

TEST_F(Slurm, ALauncherPerTaskIsRefusedWithOneSentence) {
  Job job(SlurmCluster::srun({"--nodes=2", "--ntasks-per-node=2"}, ddprun({}, worker({"wait"}))),
          slurm().setup());
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("ddprun: srun started ddprun 4 times on 2 nodes "
                                   "(SLURM_STEP_NUM_TASKS=4), but it is needed once on each, "
                                   "because it starts the workers itself; write srun "
                                   "--ntasks-per-node=1 ddprun ...\n"));
}

TEST_F(Slurm, VariablesThatMakeNoSenseAreRefusedWithOneSentence) {
  for (const auto& [changed, sentence] : std::vector<std::pair<std::string, std::string>>{
           {"SLURM_STEP_NODELIST=node[0-",
            "ddprun: SLURM_STEP_NODELIST=node[0-: it cannot be read "
            "as a list of nodes, a '[' has no ']'; say "
            "--master-addr"},
           {"SLURM_STEP_NODELIST=node[0-2]",
            "ddprun: SLURM_STEP_NODELIST=node[0-2] contradicts "
            "SLURM_STEP_NUM_NODES=2: it names 3 nodes; "},
           {"SLURM_NODEID=2", "ddprun: SLURM_NODEID=2 contradicts SLURM_STEP_NUM_NODES=2: "},
           {"SLURM_STEP_NUM_NODES=two",
            "ddprun: SLURM_STEP_NUM_NODES=two: it should be a whole "}}) {
    Command program{"env", changed};
    const Command launcher = ddprun({}, worker({"wait"}));
    program.insert(program.end(), launcher.begin(), launcher.end());
    Job job(on_two_nodes(program), slurm().setup());
    EXPECT_EQ(job.wait(), exited(2)) << changed;
    EXPECT_THAT(job.err(), HasSubstr(sentence));
  }
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AVariableThatContradictsAnOptionLosesAndTheLogSaysSo) {
  Job job(on_two_nodes(ddprun({"--nnodes=1"}, worker({"exit", "0"}))), slurm().setup());
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(job.err(),
              HasSubstr("ddprun: warning: --nnodes=1 goes before SLURM_STEP_NUM_NODES=2: nothing "
                        "about nodes is taken from Slurm\n"));
}

// --- what ends it

TEST_F(Slurm, ACancelledStepLeavesNothing) {
  const TempDir folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "deaf-child", "stamp", folder.path(), "wait"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--user=root"});
  EXPECT_NE(job.wait(), exited(0));
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AKilledStepLeavesNothing) {
  const TempDir folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "deaf-child", "stamp", folder.path(), "wait"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--signal=KILL", slurm().ask({"squeue", "-h", "-o", "%i"}) + ".0"});
  EXPECT_EQ(job.wait(), exited(128 + SIGKILL)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AKilledDdprunOfANodeTakesTheStepAlongWithSrunsWait) {
  const TempDir folder;
  Job job(on_two_nodes(ddprun({}, worker({"child", "stamp", folder.path(), "wait"})), {"--wait=1"}),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  const auto both = ddpruns(job);
  ASSERT_EQ(both.size(), 2);
  kill(both.back(), SIGKILL);
  EXPECT_NE(job.wait(), exited(0));
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, AFailedWorkerIsTheStepsExitCode) {
  Job job(on_two_nodes(ddprun({}, worker({"on-rank", "3", "exit", "7", "wait"}))), slurm().setup());
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("FAILED: rank 3"));
  EXPECT_THAT(left_over(), IsEmpty());
}

// --- preemption

// Waits for the notice, and then, as ranks do that end their last step together, for each other. In
// another life it has nothing to wait for.
Command until_preempted(const TempDir& folder) {
  return worker({"environment", folder / "{rank}", "link", "take-leave", "stamp", folder.path(),
                 "unless", folder / "told{rank}", "until-told", "touch", folder / "told{rank}",
                 "until", folder / "told0", "until", folder / "told1", "until", folder / "told2",
                 "until", folder / "told3"});
}

TEST_F(Slurm, APreemptedStepAsksForARequeue) {
  const TempDir folder;
  Job job(on_two_nodes(ddprun({}, until_preempted(folder))), slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  slurm().ask({"scancel", "--signal=USR1", "--user=root"});
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, APreemptionThatReachesOneNodeFirstEndsOnBothWithItsCode) {
  const TempDir folder;
  // These leave at once, so that the round has ended when the other node gets its notice.
  Job job(on_two_nodes(
              ddprun({}, worker({"link", "take-leave", "stamp", folder.path(), "until-told"}))),
          slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  const auto both = ddpruns(job);
  ASSERT_EQ(both.size(), 2);
  for (const pid_t pid : {both.back(), both.front()}) kill(pid, SIGUSR1);
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Slurm, WorkersThatSlurmSignalsTooAreNoFailure) {
  const TempDir folder;
  // They know nothing of notices, and die of the signal, sooner or later than ddprun gets its own.
  Job job(on_two_nodes(ddprun({}, worker({"stamp", folder.path(), "wait"}))), slurm().setup());
  ASSERT_TRUE(job.reaches([&] { return run(folder, 4); })) << job.err();
  for (const auto& [rank, stamp] : stamps(folder.path(), 0)) kill(stamp.pid, SIGUSR1);
  for (const pid_t pid : ddpruns(job)) kill(pid, SIGUSR1);
  EXPECT_EQ(job.wait(), exited(kPreempted)) << job.err();
  EXPECT_THAT(job.err(), Not(HasSubstr("FAILED")));
}

TEST_F(Slurm, TheScriptOfOursRequeuesAPreemptedJobWhichThenRunsToItsEnd) {
  const TempDir folder;
  const std::string out = folder / "out";
  Command command{"sbatch",          "--parsable",
                  "--nodes=2",       "--cpus-per-task=2",
                  "--output=" + out, DDPRUN_SOURCE_DIR "/scripts/slurm/train.sbatch"};
  const Command program = until_preempted(folder);
  command.insert(command.end(), program.begin(), program.end());
  JobSetup setup = slurm().setup();
  setup.environment["DDPRUN"] = ddprun({}).front();
  Job submitted(command, setup);
  ASSERT_EQ(submitted.wait(), exited(0)) << submitted.err();
  std::string job = submitted.out();
  job.pop_back();
  ASSERT_TRUE(eventually([&] { return run(folder, 4); })) << read_file(out);
  EXPECT_EQ(environment_in(folder / "3")["TORCHELASTIC_RUN_ID"], job + ".0");
  slurm().ask({"scancel", "--batch", "--signal=USR1", job});
  ASSERT_TRUE(eventually([&] { return slurm().state_of(job) == "PENDING"; })) << read_file(out);
  EXPECT_THAT(left_over(), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(fs::exists(folder / ("told" + std::to_string(rank)))) << rank;
  }
  ASSERT_TRUE(slurm().start_now(job)) << read_file(out);
  ASSERT_TRUE(eventually([&] { return slurm().state_of(job) == "COMPLETED"; })) << read_file(out);
  EXPECT_EQ(environment_in(folder / "3")["TORCHELASTIC_RUN_ID"], job + ".0-r1");
}

}  // namespace
}  // namespace ddprun::test
