// What the variables of each site become, but Slurm's and Kubernetes', which have tests of their own. Those of Open MPI
// 4.1.4 and of MPICH 4.0.2 are as they were printed, shortened; the others are from the sites' documentation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "launcher/settings/settings.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

using Words = std::vector<std::string>;
using Changes = std::vector<std::pair<std::string, std::string>>;

// An empty text: the variable is not set.
Environment with(Environment environment, const Changes& changes) {
  for (const auto& [name, text] : changes) {
    environment[name] = text;
    if (text.empty()) environment.erase(name);
  }
  return environment;
}

class PlanningAtSite : public Planning {
 protected:
  // The option's text, and where it is from, as --dry-run shows it.
  std::string row(OptionId id, const Environment& environment, const Words& words = {}) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    if (!made) return "";
    EXPECT_THAT(made->settings.site.warnings, IsEmpty());
    return made->settings[id].text + " " + to_string(made->settings[id].origin);
  }
  std::string site(const Environment& environment) {
    const auto found = find_site(environment, tree_.path());
    return found ? found->name : "";
  }
  void expect_silenced(const Environment& environment) {
    for (const char* const word : {"--standalone", "--nnodes=1"}) {
      const auto made = plan({word}, environment);
      ASSERT_TRUE(made) << word << made.error().to_string();
      EXPECT_TRUE(made->job.nodes.is_alone()) << word;
    }
  }
};

// ---- Open MPI: mpirun -N 1 -H node0,node1 on node0; on the second

Environment mpirun4() {
  return {{"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_MCA_orte_hnp_uri", "691077120.0;tcp://10.77.0.1:55257;tcp6://[fd77::1]:47847"},
          {"OMPI_MCA_orte_local_daemon_uri",
           "691077120.1;tcp://10.77.0.2:43893;tcp6://[fd77::2]:38863"},
          {"PMIX_HOSTNAME", "node1"},
          {"PMIX_NAMESPACE", "691077121"},
          {"PMIX_RANK", "1"}};
}

Environment mpirun5() {
  return with(mpirun4(), {{"OMPI_MCA_orte_hnp_uri", ""},
                          {"OMPI_MCA_orte_local_daemon_uri", ""},
                          {"PMIX_NAMESPACE", "prterun-node-0-4711@1"}});
}

TEST_F(PlanningAtSite, MpirunMakesEachOfItsProcessesANode) {
  const agent::Job made = job({}, mpirun4());
  EXPECT_EQ(made.nodes.max_nodes, 2);
  EXPECT_EQ(made.nodes.node_rank, 1);
  EXPECT_EQ(made.nodes.leader.where, rdzv::LeaderSpec::Where::kElsewhere);
  EXPECT_EQ(made.nodes.leader.endpoint, (rdzv::Endpoint{"10.77.0.1", 29500}));
  EXPECT_EQ(made.run_id, "691077121");
  EXPECT_EQ(row(OptionId::kNnodes, mpirun4()), "2 OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(row(OptionId::kNodeRank, mpirun4()), "1 OMPI_COMM_WORLD_RANK");
  EXPECT_EQ(row(OptionId::kMasterAddr, mpirun4()),
            "10.77.0.1 OMPI_MCA_orte_hnp_uri, mpirun's node");
  EXPECT_EQ(row(OptionId::kMasterAddr, mpirun5()), "node-0 PMIX_NAMESPACE, mpirun's node");
  EXPECT_EQ(row(OptionId::kRdzvEndpoint, mpirun4(), {"--rdzv-backend=c10d"}),
            "10.77.0.1 OMPI_MCA_orte_hnp_uri, mpirun's node");
}

TEST_F(PlanningAtSite, MpirunsAddressIsReadFromItsUri) {
  const auto address = [&](const std::string& uri) {
    return row(OptionId::kMasterAddr, with(mpirun4(), {{"OMPI_MCA_orte_hnp_uri", uri}}));
  };
  EXPECT_EQ(address("1.0;tcp://10.0.0.1,172.17.0.1:55257"),
            "10.0.0.1 the first address in OMPI_MCA_orte_hnp_uri, mpirun's node");
  EXPECT_EQ(address("1.0;tcp6://[fd77::1]:47847"), "fd77::1 OMPI_MCA_orte_hnp_uri, mpirun's node");
  for (const char* const uri : {"1.0", "1.0;tcp://", "1.0;tcp://:1", ";usock;tcp6://["}) {
    EXPECT_THAT(refusal({}, with(mpirun4(), {{"OMPI_MCA_orte_hnp_uri", uri}})),
                "mpirun does not say where node 0 is; say --master-addr, the first node's name, on "
                "every node")
        << uri;
  }
  for (const char* const name : {"prterun-", "prterun-4711@1", "prte-node0-1@1", "7"}) {
    EXPECT_THAT(refusal({}, with(mpirun5(), {{"PMIX_NAMESPACE", name}})),
                StartsWith("mpirun does not say where node 0 is"))
        << name;
  }
}

// As from a login node, or with hosts in another order.
TEST_F(PlanningAtSite, MpirunThatIsNotOnNode0IsNotTakenForIt) {
  const std::string here = mpirun4()["OMPI_MCA_orte_hnp_uri"];
  const Environment other = with(mpirun4(), {{"OMPI_MCA_orte_local_daemon_uri", here}});
  EXPECT_EQ(refusal({}, other),
            "mpirun runs on 10.77.0.1 (OMPI_MCA_orte_hnp_uri), and rank 0 of its processes does "
            "not (OMPI_COMM_WORLD_RANK=1 does), so it is not known where node 0 is; say "
            "--master-addr, the first node's name, on every node");
  EXPECT_TRUE(plan({}, with(other, {{"OMPI_COMM_WORLD_RANK", "0"}})));
  EXPECT_THAT(refusal({}, with(mpirun4(), {{"OMPI_COMM_WORLD_RANK", "0"}})),
              HasSubstr("does not (OMPI_COMM_WORLD_RANK=0), so"));
  EXPECT_THAT(refusal({}, with(mpirun5(), {{"PMIX_HOSTNAME", "node-0"}})),
              StartsWith("mpirun runs on node-0 (PMIX_NAMESPACE)"));
  EXPECT_EQ(job({"--master-addr=first"}, other).nodes.leader.endpoint.host, "first");
  EXPECT_EQ(job({"--rdzv-backend=c10d", "--rdzv-endpoint=first:1"}, other).nodes.max_nodes, 2);
  expect_silenced(other);
}

TEST_F(PlanningAtSite, AProcessForEachWorkerIsTooManyDdpruns) {
  const Environment eight = with(mpirun4(), {{"OMPI_COMM_WORLD_SIZE", "8"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(refusal({}, eight),
            "mpirun started ddprun 4 times on this node (OMPI_COMM_WORLD_LOCAL_SIZE=4), but it is "
            "needed once on each, because it starts the workers itself; write mpirun -N 1 "
            "--bind-to none ddprun ...");
  expect_silenced(eight);
  EXPECT_EQ(job({"--nnodes=8"}, eight).nodes.node_rank, 1) << "eight nodes are meant";
}

TEST_F(PlanningAtSite, WorkersThatMpirunBindsToOneCoreAreTold) {
  const auto made = plan({}, with(mpirun4(), {{"OMPI_MCA_orte_bound_at_launch", "1"}}));
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_THAT(made->warnings, Contains(HasSubstr("--bind-to none gives them all")));
}

TEST_F(PlanningAtSite, OneProcessIsAJobOfOneNode) {
  const Environment one = with(mpirun4(), {{"OMPI_COMM_WORLD_SIZE", "1"},
                                           {"OMPI_COMM_WORLD_RANK", "0"},
                                           {"OMPI_MCA_orte_hnp_uri", ""}});
  const auto made = plan({}, one);
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_TRUE(made->job.nodes.is_alone());
}

TEST_F(PlanningAtSite, OneProcessInsideOfWhatCountsMoreNodesIsWarned) {
  const Environment one{{"OMPI_COMM_WORLD_RANK", "0"},
                        {"OMPI_COMM_WORLD_SIZE", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
  const Environment both = with(one, {{"SLURM_JOB_ID", "4711"},
                                      {"SLURM_STEP_ID", "0"},
                                      {"SLURM_PROCID", "1"},
                                      {"SLURM_NODEID", "1"},
                                      {"SLURM_STEP_NUM_NODES", "2"},
                                      {"SLURM_STEP_NUM_TASKS", "2"},
                                      {"SLURM_STEP_NODELIST", "n[1-2]"}});
  const std::string warning =
      "OMPI_COMM_WORLD_SIZE=1 (Open MPI) makes this a job of one node, though "
      "SLURM_STEP_NUM_NODES=2 (Slurm) counts more; --nnodes=1 silences this; if Slurm has started "
      "ddprun, unset the variables of Open MPI";
  EXPECT_THAT(plan({}, both)->warnings, Contains(warning));
  EXPECT_THAT(plan({"--nnodes=1"}, both)->warnings, Not(Contains(warning)));
  EXPECT_THAT(plan({}, one)->warnings, IsEmpty());
  const Environment batch = with(one, {{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_NUM_NODES", "2"}});
  EXPECT_THAT(plan({}, batch)->warnings, IsEmpty()) << "a shell gives no rank";
  EXPECT_THAT(plan({}, with(both, {{"SLURM_STEP_NUM_NODES", "1"},
                                   {"SLURM_NODEID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "1"},
                                   {"SLURM_STEP_NODELIST", "n1"}}))
                  ->warnings,
              IsEmpty());
}

TEST_F(PlanningAtSite, WrongRanksAreRefused) {
  EXPECT_EQ(
      refusal({}, with(mpirun4(), {{"OMPI_COMM_WORLD_RANK", "2"}})),
      "OMPI_COMM_WORLD_RANK=2 contradicts OMPI_COMM_WORLD_SIZE=2: nodes are counted from 0; "
      "write mpirun -N 1 --bind-to none ddprun ..., or say --nnodes, --node-rank and --master-addr "
      "yourself");
  EXPECT_EQ(refusal({}, with(mpirun4(), {{"OMPI_COMM_WORLD_SIZE", "two"}})),
            "OMPI_COMM_WORLD_SIZE=two: it should be a whole number from 1; write mpirun -N 1 "
            "--bind-to none ddprun ...");
  EXPECT_EQ(refusal({}, with(mpirun4(), {{"OMPI_COMM_WORLD_SIZE", ""}})),
            "Open MPI is here (OMPI_COMM_WORLD_RANK=1), but OMPI_COMM_WORLD_SIZE is not set, so "
            "the number of nodes is not known; say --nnodes");
  EXPECT_EQ(job({"--nnodes=3"}, with(mpirun4(), {{"OMPI_COMM_WORLD_SIZE", ""}})).nodes.node_rank,
            1);
}

// ---- MPICH: mpiexec -ppn 1 -hosts node0,node1; on the second

Environment mpiexec() {
  return {{"HYDI_CONTROL_FD", "7"}, {"MPI_LOCALNRANKS", "1"}, {"MPI_LOCALRANKID", "0"},
          {"PMI_FD", "6"},          {"PMI_RANK", "1"},        {"PMI_SIZE", "2"}};
}

TEST_F(PlanningAtSite, MpiexecSaysAllButNode0) {
  EXPECT_EQ(refusal({}, mpiexec()),
            "mpiexec does not say where node 0 is; say --master-addr, the first node's name, on "
            "every node");
  const auto made = plan({"--master-addr=node0"}, mpiexec());
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->settings.site.name, "MPICH");
  EXPECT_THAT(made->settings.site.warnings, IsEmpty());
  EXPECT_EQ(made->job.nodes.node_rank, 1);
  EXPECT_EQ(made->job.nodes.max_nodes, 2);
  EXPECT_THAT(refusal({}, with(mpiexec(), {{"MPI_LOCALNRANKS", "2"}})),
              AllOf(StartsWith("mpiexec started ddprun 2 times on this node (MPI_LOCALNRANKS=2)"),
                    HasSubstr("write mpiexec -ppn 1 ddprun ...")));
  expect_silenced(mpiexec());
}

TEST_F(PlanningAtSite, InsideOfAnAllocationNode0IsItsFirstHost) {
  const auto in = [](const std::string& name, const std::string& text) {
    return with(mpiexec(), {{name, text}});
  };
  EXPECT_EQ(row(OptionId::kMasterAddr, in("SLURM_JOB_NODELIST", "gpu[7-8]")),
            "gpu7 the first of SLURM_JOB_NODELIST");
  EXPECT_EQ(row(OptionId::kMasterAddr, in("LSB_MCPU_HOSTS", "hosta 4 hostb 4")),
            "hosta the first of LSB_MCPU_HOSTS");
  tree_.write("aux/1.server", "hosta\nhosta\nhostb\nhosta\n");
  EXPECT_EQ(row(OptionId::kMasterAddr, in("PBS_NODEFILE", "/aux/1.server")),
            "hosta the first of PBS_NODEFILE");
}

TEST_F(PlanningAtSite, AListOfOtherHostsDoesNotTellNode0) {
  const auto why = [&](const std::string& name, const std::string& text) {
    return refusal({}, with(mpiexec(), {{name, text}}));
  };
  EXPECT_EQ(why("LSB_MCPU_HOSTS", "a 1 b 1 c 1"),
            "PMI_SIZE=2, but LSB_MCPU_HOSTS names 3 nodes, so it is not known where node 0 is; say "
            "--master-addr, the first node's name, on every node");
  EXPECT_THAT(
      why("LSB_MCPU_HOSTS", "a 1 b"),
      StartsWith("LSB_MCPU_HOSTS=a 1 b: it should be hosts, each with its number of slots"));
  EXPECT_THAT(why("LSB_MCPU_HOSTS", "a b b a"), StartsWith("LSB_MCPU_HOSTS=a b b a: it should"));
  EXPECT_THAT(why("SLURM_JOB_NODELIST", "gpu[7-"),
              StartsWith("SLURM_JOB_NODELIST=gpu[7-: it cannot"));
  EXPECT_THAT(why("PBS_NODEFILE", "/none"),
              StartsWith("PBS_NODEFILE=/none: this node cannot read it"));
}

// ---- PBS

Environment pals() {
  return {{"PBS_JOBID", "4711.polaris"},
          {"PBS_NODEFILE", "/aux/4711.polaris"},
          {"PALS_RANKID", "1"},
          {"PALS_NODEID", "1"},
          {"PALS_LOCAL_RANKID", "0"},
          {"PALS_LOCAL_SIZE", "1"},
          {"PMI_RANK", "1"},
          {"PMI_SIZE", "2"},
          {"PMI_LOCAL_RANK", "0"},
          {"PMI_LOCAL_SIZE", "1"}};
}

TEST_F(PlanningAtSite, PalsStartsANodeWithEachProcess) {
  tree_.write("aux/4711.polaris", "x1.cm\nx2.cm\n");
  EXPECT_EQ(site(pals()), "PBS");
  EXPECT_EQ(row(OptionId::kNnodes, pals()), "2 PMI_SIZE");
  EXPECT_EQ(row(OptionId::kNodeRank, pals()), "1 PALS_RANKID");
  EXPECT_EQ(row(OptionId::kMasterAddr, pals()), "x1.cm the first of PBS_NODEFILE");
  EXPECT_EQ(row(OptionId::kRdzvId, pals()), "4711.polaris PBS_JOBID");
  EXPECT_EQ(site(with(pals(), {{"MPI_LOCALRANKID", "0"}})), "PBS") << "PALS sets it, too";
  EXPECT_THAT(refusal({}, with(pals(), {{"PALS_LOCAL_SIZE", "4"}, {"PMI_SIZE", "8"}})),
              StartsWith("mpiexec started ddprun 4 times on this node (PALS_LOCAL_SIZE=4)"));
  EXPECT_THAT(refusal({}, with(pals(), {{"PMI_SIZE", ""}})), HasSubstr("PMI_SIZE is not set"));
  expect_silenced(pals());
}

TEST_F(PlanningAtSite, ABatchScriptOfSeveralNodesIsToldToStartDdprunOnEach) {
  const Environment pbs{{"PBS_JOBID", "1.server"}, {"PBS_NODEFILE", "/aux/1.server"}};
  const Environment lsf{{"LSB_JOBID", "17"}, {"LSB_MCPU_HOSTS", "hosta 4 hostb 4"}};
  tree_.write("aux/1.server", "hosta\nhosta\nhostb\n");
  EXPECT_EQ(
      refusal({}, pbs),
      "this job has 2 nodes (PBS_NODEFILE), and nothing says which of them this ddprun is; "
      "write mpiexec --ppn 1 --cpu-bind none ddprun ..., or --nnodes=1 to run on this node alone");
  EXPECT_THAT(refusal({}, lsf),
              AllOf(StartsWith("this job has 2 nodes (LSB_MCPU_HOSTS), and nothing says which"),
                    HasSubstr("write mpirun -N 1 --bind-to none ddprun ...")));
  expect_silenced(pbs);
  expect_silenced(lsf);
  const Words all{"--nnodes=2", "--node-rank=1", "--master-addr=hosta"};
  EXPECT_EQ(job(all, pbs).nodes.node_rank, 1);
  EXPECT_EQ(job(all, lsf).nodes.node_rank, 1);
}

TEST_F(PlanningAtSite, ABatchScriptOfOneNodeNeedsNoOption) {
  tree_.write("aux/1.server", "hosta\nhosta\n");
  const Environment pbs{{"PBS_JOBID", "1.server"}, {"PBS_NODEFILE", "/aux/1.server"}};
  EXPECT_EQ(row(OptionId::kNnodes, pbs), "1 PBS_NODEFILE");
  EXPECT_EQ(row(OptionId::kRdzvId, pbs), "1.server PBS_JOBID");
  const Environment lsf{{"LSB_JOBID", "17"}, {"LSB_MCPU_HOSTS", "hosta 4"}};
  EXPECT_EQ(row(OptionId::kNnodes, lsf), "1 LSB_MCPU_HOSTS");
  EXPECT_EQ(row(OptionId::kRdzvId, lsf), "17 LSB_JOBID");
}

TEST_F(PlanningAtSite, ABatchScriptWhoseHostsAreNotKnownSaysSo) {
  const Environment elsewhere{{"PBS_JOBID", "1"}, {"PBS_NODEFILE", "/none"}};
  const auto made = plan({}, elsewhere);
  ASSERT_TRUE(made) << "a node's own shell: " << made.error().to_string();
  EXPECT_THAT(
      made->warnings,
      Contains("PBS_NODEFILE=/none: this node cannot read it, PBS has it on the first node; "
               "this ddprun runs alone, --nnodes=1 silences this"));
  EXPECT_THAT(plan({"--nnodes=1"}, elsewhere)->warnings, IsEmpty());
  for (const std::string list : {"a 1 b", "n1 1 n2 x"}) {
    const Environment lsf{{"LSB_JOBID", "17"}, {"LSB_MCPU_HOSTS", list}};
    EXPECT_EQ(refusal({}, lsf), "LSB_MCPU_HOSTS=" + list +
                                    ": it should be hosts, each with its number of slots; say "
                                    "--nnodes=1 to run on this node alone");
    expect_silenced(lsf);
  }
}

// ---- LSF: jsrun on two nodes, whose script runs on a launch node; on the second

Environment jsrun() {
  return {{"LSB_JOBID", "17"},
          {"LSB_MCPU_HOSTS", "batch5 1 h36n01 42 h36n02 42"},
          {"JSM_NAMESPACE_RANK", "1"},
          {"JSM_NAMESPACE_SIZE", "2"},
          {"JSM_NAMESPACE_LOCAL_RANK", "0"},
          {"JSM_NAMESPACE_LOCAL_SIZE", "1"},
          {"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"}};
}

TEST_F(PlanningAtSite, JsrunStartsANodeWithEachProcess) {
  EXPECT_EQ(site(jsrun()), "LSF");
  EXPECT_EQ(row(OptionId::kNnodes, jsrun()), "2 JSM_NAMESPACE_SIZE");
  EXPECT_EQ(row(OptionId::kNodeRank, jsrun()), "1 JSM_NAMESPACE_RANK");
  EXPECT_EQ(row(OptionId::kMasterAddr, jsrun()),
            "h36n01 the first of LSB_MCPU_HOSTS without the launch node");
  EXPECT_EQ(row(OptionId::kMasterAddr, with(jsrun(), {{"LSB_MCPU_HOSTS", "a 42 b 42"}})),
            "a the first of LSB_MCPU_HOSTS");
  EXPECT_THAT(refusal({}, with(jsrun(), {{"LSB_MCPU_HOSTS", "a 42 b 42 c 42"}})),
              HasSubstr("LSB_MCPU_HOSTS names 3 nodes"));
  EXPECT_THAT(refusal({}, with(jsrun(), {{"JSM_NAMESPACE_LOCAL_SIZE", "6"}})),
              AllOf(StartsWith("jsrun started ddprun 6 times on this node"),
                    HasSubstr("write jsrun -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS ddprun ...")));
  expect_silenced(jsrun());
}

// ---- Flux: flux run -N 2 --tasks-per-node=1; on the second

Environment flux() {
  return {{"FLUX_JOB_ID", "f2Nk5B7s"},
          {"FLUX_JOB_SIZE", "2"},
          {"FLUX_JOB_NNODES", "2"},
          {"FLUX_TASK_RANK", "1"},
          {"PMI_RANK", "1"},
          {"FLUX_TASK_LOCAL_ID", "0"},
          {"PMI_SIZE", "2"}};
}

TEST_F(PlanningAtSite, FluxSaysAllButNode0) {
  EXPECT_THAT(refusal({}, flux()), AllOf(StartsWith("Flux does not say where node 0 is"),
                                         HasSubstr("flux hostlist -n 0 local")));
  const Words address{"--master-addr=node0"};
  EXPECT_EQ(row(OptionId::kNnodes, flux(), address), "2 FLUX_JOB_NNODES");
  EXPECT_EQ(row(OptionId::kNodeRank, flux(), address), "1 FLUX_TASK_RANK");
  EXPECT_EQ(row(OptionId::kRdzvId, flux(), address), "f2Nk5B7s FLUX_JOB_ID");
  EXPECT_THAT(
      refusal({}, with(flux(), {{"FLUX_JOB_SIZE", "8"}})),
      StartsWith(
          "flux started ddprun 8 times on 2 nodes (FLUX_JOB_SIZE=8), but it is needed once"));
  expect_silenced(flux());
  const Environment one =
      with(flux(), {{"FLUX_JOB_SIZE", "1"}, {"FLUX_JOB_NNODES", "1"}, {"FLUX_TASK_RANK", "0"}});
  EXPECT_TRUE(plan({}, one)) << "one node needs no address";
}

// ---- clouds

TEST_F(PlanningAtSite, SkyPilotNeedsNoOption) {
  const Environment sky{{"SKYPILOT_NODE_RANK", "1"},
                        {"SKYPILOT_NUM_NODES", "2"},
                        {"SKYPILOT_NODE_IPS", "10.0.0.7\n10.0.0.4"},
                        {"SKYPILOT_NUM_GPUS_PER_NODE", "4"},
                        {"SKYPILOT_TASK_ID", "sky-2023-07-06-21-18-31-563597_myclus_1"}};
  EXPECT_EQ(row(OptionId::kNnodes, sky), "2 SKYPILOT_NUM_NODES");
  EXPECT_EQ(row(OptionId::kNodeRank, sky), "1 SKYPILOT_NODE_RANK");
  EXPECT_EQ(row(OptionId::kMasterAddr, sky), "10.0.0.7 the first of SKYPILOT_NODE_IPS");
  EXPECT_EQ(row(OptionId::kNprocPerNode, sky), "4 SKYPILOT_NUM_GPUS_PER_NODE");
  EXPECT_EQ(row(OptionId::kRdzvId, sky),
            "sky-2023-07-06-21-18-31-563597_myclus_1 SKYPILOT_TASK_ID");
  EXPECT_EQ(row(OptionId::kNprocPerNode, with(sky, {{"SKYPILOT_NUM_GPUS_PER_NODE", "0"}})),
            "1 default");
  EXPECT_EQ(row(OptionId::kNprocPerNode, sky, {"--nproc-per-node=2"}), "2 --nproc-per-node");
  EXPECT_EQ(refusal({}, with(sky, {{"SKYPILOT_NUM_GPUS_PER_NODE", "0.5"}})),
            "SKYPILOT_NUM_GPUS_PER_NODE=0.5: it should be a whole number from 0; say "
            "--nproc-per-node");
  EXPECT_THAT(refusal({}, with(sky, {{"SKYPILOT_NODE_IPS", " "}})),
              StartsWith("SKYPILOT_NODE_IPS is not set, so it is not known where node 0 is"));
  EXPECT_EQ(refusal({}, with(sky, {{"SKYPILOT_NODE_RANK", "2"}})),
            "SKYPILOT_NODE_RANK=2 contradicts SKYPILOT_NUM_NODES=2: nodes are counted from 0; say "
            "--nnodes, --node-rank and --master-addr yourself");
  expect_silenced(sky);
}

TEST_F(PlanningAtSite, DstackNeedsNoOption) {
  const Environment dstack{{"DSTACK_NODES_NUM", "2"},
                           {"DSTACK_NODE_RANK", "1"},
                           {"DSTACK_GPUS_PER_NODE", "8"},
                           {"DSTACK_GPUS_NUM", "16"},
                           {"DSTACK_RUN_NAME", "train"},
                           {"DSTACK_MASTER_NODE_IP", "10.0.0.7"},
                           {"DSTACK_NODES_IPS", "10.0.0.7\n10.0.0.4"}};
  EXPECT_EQ(row(OptionId::kNnodes, dstack), "2 DSTACK_NODES_NUM");
  EXPECT_EQ(row(OptionId::kNodeRank, dstack), "1 DSTACK_NODE_RANK");
  EXPECT_EQ(row(OptionId::kMasterAddr, dstack), "10.0.0.7 DSTACK_MASTER_NODE_IP");
  EXPECT_EQ(row(OptionId::kNprocPerNode, dstack), "8 DSTACK_GPUS_PER_NODE");
  EXPECT_EQ(row(OptionId::kRdzvId, dstack), "train DSTACK_RUN_NAME");
  expect_silenced(dstack);
}

TEST_F(PlanningAtSite, SageMakerNeedsNoOption) {
  const Environment sagemaker{{"SM_HOSTS", R"(["algo-1", "algo-2","algo-3"])"},
                              {"SM_CURRENT_HOST", "algo-2"},
                              {"SM_NUM_GPUS", "8"}};
  EXPECT_EQ(row(OptionId::kNnodes, sagemaker), "3 SM_HOSTS");
  EXPECT_EQ(row(OptionId::kNodeRank, sagemaker), "1 SM_CURRENT_HOST in SM_HOSTS");
  EXPECT_EQ(row(OptionId::kMasterAddr, sagemaker), "algo-1 the first of SM_HOSTS");
  EXPECT_EQ(row(OptionId::kNprocPerNode, sagemaker), "8 SM_NUM_GPUS");
  EXPECT_THAT(refusal({}, with(sagemaker, {{"SM_CURRENT_HOST", "algo-4"}})),
              StartsWith("SM_CURRENT_HOST=algo-4 contradicts SM_HOSTS"));
  for (const char* const list : {"algo-1", "[]", "[algo-1]", R"(["algo-1",])", R"(["algo-1")"}) {
    EXPECT_THAT(refusal({}, with(sagemaker, {{"SM_HOSTS", list}})),
                StartsWith("SM_HOSTS=" + std::string(list) + ": it should be a list"));
  }
  expect_silenced(sagemaker);
}

Environment leader_worker_set() {
  return {{"LWS_LEADER_ADDRESS", "llm-0.llm.default"},
          {"LWS_GROUP_SIZE", "4"},
          {"LWS_WORKER_INDEX", "2"},
          {"KUBERNETES_SERVICE_HOST", "10.96.0.1"}};
}

TEST_F(PlanningAtSite, ALeaderWorkerSetNeedsNoOption) {
  EXPECT_EQ(row(OptionId::kNnodes, leader_worker_set()), "4 LWS_GROUP_SIZE");
  EXPECT_EQ(row(OptionId::kNodeRank, leader_worker_set()), "2 LWS_WORKER_INDEX");
  EXPECT_EQ(row(OptionId::kMasterAddr, leader_worker_set()),
            "llm-0.llm.default LWS_LEADER_ADDRESS");
  EXPECT_EQ(job({}, leader_worker_set()).shutdown_timeout, std::chrono::seconds(20));
  EXPECT_EQ(refusal({}, with(leader_worker_set(), {{"LWS_WORKER_INDEX", ""}})),
            "LWS_GROUP_SIZE=4, but LWS_WORKER_INDEX is not set, so the rank of this node is not "
            "known; say --node-rank")
      << "as before version 0.6";
  expect_silenced(leader_worker_set());
}

// ---- several at once

TEST_F(PlanningAtSite, InsideOfSlurmMungeProvesWhateverStartsDdprun) {
  surroundings_.munge_library = "none";
  const auto notes = [&](const Environment& environment) { return plan({}, environment)->notes; };
  EXPECT_THAT(notes(mpirun4()), Not(Contains(HasSubstr("munge"))));
  EXPECT_THAT(notes(with(mpirun4(), {{"SLURM_JOB_ID", "7"}})), Contains(HasSubstr("munge")));
}

TEST_F(PlanningAtSite, TheInnermostSiteCounts) {
  const Environment slurm{{"SLURM_JOB_ID", "7"},     {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "0"},     {"SLURM_NODEID", "0"},
                          {"SLURM_NNODES", "1"},     {"SLURM_NTASKS", "1"},
                          {"SLURMD_NODENAME", "n0"}, {"SLURM_JOB_NUM_NODES", "2"}};
  const auto inside = [](const Environment& outer, Environment inner) {
    for (const auto& [name, text] : outer) inner.try_emplace(name, text);
    return inner;
  };
  const Environment job{{"JOB_COMPLETION_INDEX", "0"}, {"HOSTNAME", "llm-0"}};
  const Environment sky{{"SKYPILOT_NODE_RANK", "0"}, {"SKYPILOT_NUM_NODES", "1"}};
  EXPECT_EQ(site(inside(slurm, mpirun4())), "Open MPI");
  EXPECT_EQ(site(inside(slurm, mpiexec())), "MPICH");
  EXPECT_EQ(site(inside(slurm, flux())), "Flux");
  EXPECT_EQ(site(inside(slurm, sky)), "SkyPilot");
  EXPECT_EQ(site(inside(slurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})), "Slurm") << "by pmi2";
  EXPECT_EQ(site(inside(slurm, {{"PALS_RANKID", "0"}})), "Slurm") << "for Cray's MPI";
  EXPECT_EQ(site(inside(pals(), mpirun4())), "Open MPI");
  EXPECT_EQ(site(inside(jsrun(), flux())), "Flux");
  EXPECT_EQ(site(inside(job, leader_worker_set())), "LeaderWorkerSet");
  EXPECT_EQ(site(inside(job, mpirun4())), "Open MPI") << "the MPI operator's pods";
  EXPECT_EQ(site(with(mpirun4(), {{"TORCHELASTIC_RUN_ID", "none"}})), "");
}

}  // namespace
}  // namespace ddprun::cli
