// ddprun under Debian's Open MPI: mpirun on the first of the nodes starts one on each. Its remote shell enters the
// namespaces of the other nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/network.h"
#include "tests/support/training.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kMpirun = "/usr/bin/mpirun.openmpi";

class OpenMpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access(kMpirun, X_OK) != 0) {
      GTEST_SKIP() << "no program '" << kMpirun << "' here: scripts/setup installs openmpi-bin";
    }
    if (const auto& obstacle = Network::obstacle()) GTEST_SKIP() << *obstacle;
    network_.emplace(3);
    std::string script = "#!/bin/sh\ncase $1 in\n";
    for (const int node : {1, 2}) {
      guards_.push_back(std::make_unique<Job>(Command{"sleep", "infinity"}, network_->on(node)));
      script += Network::host(node) + ") pid=" + std::to_string(guards_.back()->pid()) + " ;;\n";
    }
    script += "esac\nshift\nexec nsenter --target $pid --net --mount --uts -- sh -c \"$*\"\n";
    write_file(folder_ / "rsh", script, 0755);
  }

  // On the first node: `processes` on each of the hosts.
  Command mpirun(const Command& command, const std::string& processes = "1",
                 const std::string& hosts = "node0:4,node1:4") const {
    Command all{kMpirun,
                "--allow-run-as-root",
                "--mca",
                "plm_rsh_agent",
                folder_ / "rsh",
                "-N",
                processes,
                "--bind-to",
                "none",
                "-H",
                hosts};
    all.insert(all.end(), command.begin(), command.end());
    return all;
  }
  JobSetup on_first() const { return network_->on(0); }
  std::vector<std::string> left_over(const Job& job) const { return job.left_over(); }

  TemporaryTree folder_;
  std::optional<Network> network_;
  std::vector<std::unique_ptr<Job>> guards_;
};

TEST_F(OpenMpi, MpirunOfTwoNodesNeedsNoOption) {
  Job job(
      mpirun(ddprun({"--nproc-per-node=2"}, meeting_worker({"environment", folder_ / "{rank}"}))),
      on_first());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  for (int rank = 0; rank < 4; ++rank) {
    auto variables = environment_in(folder_ / std::to_string(rank));
    EXPECT_EQ(variables["WORLD_SIZE"], "4");
    EXPECT_EQ(variables["GROUP_RANK"], std::to_string(rank / 2));
    EXPECT_EQ(variables["OMPI_COMM_WORLD_RANK"], std::to_string(rank / 2));
    EXPECT_EQ(variables["PMIX_HOSTNAME"], Network::host(rank / 2));
    EXPECT_EQ(variables["MASTER_ADDR"], Network::address(0));
    EXPECT_EQ(variables["TORCHELASTIC_RUN_ID"], variables["PMIX_NAMESPACE"]);
  }
  EXPECT_THAT(job.err(), Not(HasSubstr("bind-to")));
  EXPECT_THAT(left_over(job), IsEmpty());
}

TEST_F(OpenMpi, TheDryRunNamesOpenMpiAndItsVariables) {
  Job job(mpirun(ddprun({"--dry-run"}, worker({"exit", "0"}))), on_first());
  ASSERT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(
      job.out(),
      AllOf(ContainsRegex("site +Open MPI\n"), ContainsRegex("nnodes +2 +OMPI_COMM_WORLD_SIZE\n"),
            ContainsRegex("node-rank +0 +OMPI_COMM_WORLD_RANK\n"),
            ContainsRegex("node-rank +1 +OMPI_COMM_WORLD_RANK\n"),
            ContainsRegex("master-addr +10.77.0.1 +OMPI_MCA_orte_hnp_uri, mpirun's node\n"),
            ContainsRegex("rdzv-id +[0-9]+ +PMIX_NAMESPACE\n")));
}

TEST_F(OpenMpi, AProcessForEachWorkerIsRefused) {
  Job job(mpirun(ddprun({}, worker({"exit", "0"})), "2"), on_first());
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("mpirun started ddprun 2 times on this node"));
  EXPECT_THAT(left_over(job), IsEmpty());
}

// As on a login node: mpirun is on none of the nodes.
TEST_F(OpenMpi, AnotherFirstNodeIsAskedForAndDoesNotHang) {
  const std::string hosts = "node1:4,node2:4";
  Job unknown(mpirun(ddprun({}, meeting_worker({})), "1", hosts), on_first());
  EXPECT_EQ(unknown.wait(), exited(2)) << unknown.err();
  EXPECT_THAT(unknown.err(), HasSubstr("so it is not known where node 0 is; say --master-addr"));
  EXPECT_THAT(left_over(unknown), IsEmpty());
  Job said(
      mpirun(ddprun({"--master-addr=node1"}, meeting_worker({"environment", folder_ / "{rank}"})),
             "1", hosts),
      on_first());
  ASSERT_EQ(said.wait(), exited(0)) << said.err();
  EXPECT_EQ(environment_in(folder_ / "0")["PMIX_HOSTNAME"], "node1");
}

TEST_F(OpenMpi, AWorkersEndIsMpirunsEndAndNothingIsLeft) {
  Job job(mpirun(ddprun({"--nproc-per-node=2"}, worker({"on-rank", "3", "exit", "7", "wait"}))),
          on_first());
  EXPECT_EQ(job.wait(), exited(7)) << job.err();
  EXPECT_THAT(left_over(job), IsEmpty());
}

TEST_F(OpenMpi, MpirunsEndLeavesNothing) {
  Job job(mpirun(ddprun({"--nproc-per-node=2"}, worker({"stamp", folder_.path(), "wait"}))),
          on_first());
  ASSERT_TRUE(job.reaches([&] { return stamps(folder_.path(), 0).size() == 4; })) << job.err();
  job.signal(SIGTERM);
  EXPECT_NE(job.wait(), exited(0)) << job.err();
  EXPECT_THAT(left_over(job), IsEmpty());
}

}  // namespace
}  // namespace ddprun::test
