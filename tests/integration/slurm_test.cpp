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

}  // namespace
}  // namespace ddprun::test
