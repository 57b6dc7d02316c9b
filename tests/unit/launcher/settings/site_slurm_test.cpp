// What Slurm's variables become. The sets of variables are those of Slurm 22.05's srun, sbatch and
// salloc, shortened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "launcher/settings/settings.h"
#include "tests/unit/launcher/plan/planning.h"

namespace ddprun::cli {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// srun -N2 --ntasks-per-node=1 --gpus-per-node=4, in a job of four nodes; on the second.
Environment step() {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_JOB_NODELIST", "gpu[01-04]"},
          {"SLURM_JOB_NUM_NODES", "4"},
          {"SLURM_NNODES", "2"},
          {"SLURM_NTASKS", "2"},
          {"SLURM_NODEID", "1"},
          {"SLURM_PROCID", "1"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_STEP_NODELIST", "gpu[02,04]"},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
          {"SLURM_TASKS_PER_NODE", "8(x3),2"},
          {"SLURM_CPUS_ON_NODE", "16"},
          {"SLURM_GPUS_ON_NODE", "4"},
          {"SLURMD_NODENAME", "gpu04"},
          {"OMP_NUM_THREADS", "4"}};
}

// The shell of a script: sbatch -N1 -c 8.
Environment batch() {
  return {
      {"SLURM_JOB_ID", "4711"},     {"SLURM_JOB_NODELIST", "gpu02"}, {"SLURM_JOB_NUM_NODES", "1"},
      {"SLURM_NNODES", "1"},        {"SLURM_NODEID", "0"},           {"SLURM_PROCID", "0"},
      {"SLURM_LOCALID", "0"},       {"SLURM_TASKS_PER_NODE", "1"},   {"SLURM_CPUS_ON_NODE", "8"},
      {"SLURM_CPUS_PER_TASK", "8"}, {"SLURMD_NODENAME", "gpu02"},    {"OMP_NUM_THREADS", "1"}};
}

// The shell that salloc -N1 starts where it was called.
Environment shell() {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_JOB_NODELIST", "gpu02"},
          {"SLURM_JOB_NUM_NODES", "1"},
          {"SLURM_NNODES", "1"},
          {"SLURM_TASKS_PER_NODE", "1"}};
}

Environment with(Environment environment,
                 const std::vector<std::pair<std::string, std::string>>& changes) {
  for (const auto& [name, text] : changes) environment[name] = text;
  return environment;
}

class PlanningUnderSlurm : public Planning {
 protected:
  std::vector<std::string> warnings(const std::vector<std::string>& words,
                                    const Environment& environment) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? made->warnings : std::vector<std::string>{};
  }
  Setting setting(OptionId id, const Environment& environment,
                  const std::vector<std::string>& words = {}) {
    const auto made = plan(words, environment);
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? made->settings[id] : Setting{};
  }
  static Setting from(const std::string& text, const std::string& name) {
    return {text, {Source::kSite, name}};
  }
};

TEST_F(PlanningUnderSlurm, AStepNeedsNoOption) {
  const agent::Job job = this->job({}, step());
  EXPECT_EQ(job.run_id, "4711.3");
  EXPECT_EQ(job.local_world_size, 4);
  EXPECT_EQ(job.nodes.min_nodes, 2);
  EXPECT_EQ(job.nodes.max_nodes, 2);
  EXPECT_EQ(job.nodes.node_rank, 1);
  EXPECT_EQ(job.nodes.leader.where, rdzv::LeaderSpec::Where::kElsewhere);
  EXPECT_EQ(job.nodes.leader.endpoint, (rdzv::Endpoint{"gpu02", 12000 + 4711 + 3 * 1009}));
  EXPECT_EQ(job.preempt_signal, SIGUSR1);
  EXPECT_EQ(job.shutdown_timeout, std::chrono::seconds(20));
  EXPECT_THAT(warnings({}, step()), IsEmpty());
  const agent::Job first = this->job({}, with(step(), {{"SLURM_NODEID", "0"}}));
  EXPECT_EQ(first.nodes.leader.where, rdzv::LeaderSpec::Where::kHere);
  EXPECT_EQ(first.nodes.leader.endpoint, job.nodes.leader.endpoint);
}

TEST_F(PlanningUnderSlurm, EveryValueHasItsOrigin) {
  EXPECT_EQ(setting(OptionId::kNnodes, step()), from("2", "SLURM_STEP_NUM_NODES"));
  EXPECT_EQ(setting(OptionId::kNodeRank, step()), from("1", "SLURM_NODEID"));
  EXPECT_EQ(setting(OptionId::kMasterAddr, step()),
            from("gpu02", "the first of SLURM_STEP_NODELIST"));
  EXPECT_EQ(setting(OptionId::kMasterPort, step()), from("19738", "SLURM_JOB_ID, SLURM_STEP_ID"));
  EXPECT_EQ(setting(OptionId::kRdzvId, step()), from("4711.3", "SLURM_JOB_ID, SLURM_STEP_ID"));
  EXPECT_EQ(setting(OptionId::kNprocPerNode, step()), from("4", "SLURM_GPUS_ON_NODE"));
  EXPECT_EQ(setting(OptionId::kPreemptSignal, step()), from("SIGUSR1", "Slurm"));
}

TEST_F(PlanningUnderSlurm, WithoutTheStepsVariablesThoseOfTheJobWillDo) {
  Environment old = step();
  for (const char* name :
       {"SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_NNODES"}) {
    old.erase(name);
  }
  old["SLURM_NTASKS"] = "4";
  const agent::Job job = this->job({}, old);
  EXPECT_EQ(job.nodes.max_nodes, 4);
  EXPECT_EQ(job.nodes.leader.endpoint.host, "gpu01");
}

TEST_F(PlanningUnderSlurm, ARequeuedJobHasAnotherRunId) {
  EXPECT_EQ(job({}, with(step(), {{"SLURM_RESTART_COUNT", "2"}})).run_id, "4711.3-r2");
  EXPECT_EQ(job({}, with(step(), {{"SLURM_RESTART_COUNT", "0"}})).run_id, "4711.3");
  EXPECT_EQ(job({}, with(batch(), {{"SLURM_RESTART_COUNT", "1"}})).run_id, "4711-r1");
}

TEST_F(PlanningUnderSlurm, WorkersAreTheGpusElseTheCpusOfTheAllocation) {
  using Changes = std::vector<std::pair<std::string, std::string>>;
  const std::vector<std::pair<Changes, int>> cases{
      {{}, 4},
      {{{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}}, 4},
      {{{"CUDA_VISIBLE_DEVICES", "2,3"}}, 2},
      {{{"CUDA_VISIBLE_DEVICES", "2,-1,3"}}, 1},
      {{{"CUDA_VISIBLE_DEVICES", ""}, {"SLURM_CPUS_ON_NODE", "3"}}, 3},
      {{{"CUDA_VISIBLE_DEVICES", "-1"}, {"SLURM_CPUS_ON_NODE", "3"}}, 3},
      {{{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}, {"SLURM_CPUS_ON_NODE", "3"}}, 3},
      {{{"SLURM_GPUS_ON_NODE", "0"}, {"SLURM_CPUS_ON_NODE", "3"}}, 3},
      {{{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", "3"}}, 3},
      {{{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", "6"}, {"SLURM_CPUS_PER_TASK", "5"}}, 5},
      {{{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", "2"}, {"SLURM_CPUS_PER_TASK", "5"}}, 2},
      {{{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", ""}, {"SLURM_CPUS_PER_TASK", "5"}}, 5},
      {{{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", ""}}, 1}};
  for (const auto& [changes, workers] : cases) {
    EXPECT_EQ(job({}, with(step(), changes)).local_world_size, workers)
        << testing::PrintToString(changes);
  }
  EXPECT_EQ(job({"--nproc-per-node=3"}, step()).local_world_size, 3);
}

TEST_F(PlanningUnderSlurm, GpusThatSlurmDoesNotManageAreStillGpus) {
  add_gpus(2);
  EXPECT_EQ(job({}, with(step(), {{"SLURM_GPUS_ON_NODE", ""}})).local_world_size, 2);
}

TEST_F(PlanningUnderSlurm, CpusThatAffinityTakesAwayAreMissed) {
  surroundings_.machine.affinity = std::vector<int>{0};
  const Environment cpus = with(step(), {{"SLURM_GPUS_ON_NODE", ""}, {"SLURM_CPUS_ON_NODE", "4"}});
  EXPECT_THAT(warnings({}, cpus), ElementsAre(HasSubstr("SLURM_CPUS_ON_NODE gives to the job, but "
                                                        "affinity or a cgroup leaves only 1")));
}

TEST_F(PlanningUnderSlurm, TorchrunsUsualLineMeansWhatItSays) {
  const agent::Job job = this->job({"--nnodes=2", "--nproc_per_node=8", "--rdzv_id=77",
                                    "--rdzv_backend=c10d", "--rdzv_endpoint=10.0.0.1:29500"},
                                   step());
  EXPECT_EQ(job.nodes.leader.endpoint, (rdzv::Endpoint{"10.0.0.1", 29500}));
  EXPECT_EQ(job.run_id, "77");
  EXPECT_EQ(job.local_world_size, 8);
  EXPECT_EQ(job.nodes.node_rank, 1) << "the order that Slurm has";
  EXPECT_FALSE(job.nodes.has_exact_ranks);
  EXPECT_THAT(warnings({"--nnodes=2", "--node_rank=1", "--master_addr=gpu02-ib"}, step()),
              IsEmpty());
  EXPECT_EQ(this->job({"--nnodes=2", "--master_addr=gpu02-ib"}, step()).nodes.leader.endpoint.port,
            29500)
      << "torchrun's default";
}

TEST_F(PlanningUnderSlurm, C10dMeetsWhereStaticWould) {
  const agent::Job job = this->job({"--nnodes=1:2", "--rdzv-backend=c10d"}, step());
  EXPECT_EQ(job.nodes.min_nodes, 1);
  EXPECT_EQ(job.nodes.leader.endpoint, (rdzv::Endpoint{"gpu02", 19738}));
}

TEST_F(PlanningUnderSlurm, ASignalThatStopsIsNotTakenForANotice) {
  const agent::Job job = this->job({"--signals-to-handle=SIGTERM,SIGUSR1"}, step());
  EXPECT_EQ(job.preempt_signal, std::nullopt);
  EXPECT_THAT(job.stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_EQ(this->job({"--preempt-signal=TERM"}, step()).preempt_signal, SIGTERM);
  EXPECT_EQ(this->job({"--preempt-signal="}, step()).preempt_signal, std::nullopt);
}

TEST_F(PlanningUnderSlurm, ALauncherPerTaskIsToldSo) {
  const Environment eight =
      with(step(), {{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"}});
  const std::string sentence =
      "srun started ddprun 16 times on 2 nodes (SLURM_STEP_NUM_TASKS=16), but it is needed once on "
      "each, because it starts the workers itself; write srun --ntasks-per-node=1 ddprun ...";
  EXPECT_EQ(refusal({}, eight), sentence);
  EXPECT_EQ(refusal({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"}, eight), sentence);
  EXPECT_TRUE(plan({"--standalone"}, eight)) << "16 jobs";
  EXPECT_TRUE(plan({"--nnodes=1"}, eight)) << "16 jobs";
  EXPECT_TRUE(plan({"--nnodes=16", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"}, eight))
      << "16 nodes";
}

TEST_F(PlanningUnderSlurm, VariablesThatContradictEachOtherAreNamed) {
  EXPECT_EQ(refusal({}, with(step(), {{"SLURM_NODEID", "2"}})),
            "SLURM_NODEID=2 contradicts SLURM_STEP_NUM_NODES=2: nodes are counted from 0; write "
            "srun --ntasks-per-node=1 ddprun ..., or say --nnodes, --node-rank and --master-addr "
            "yourself");
  EXPECT_THAT(refusal({}, with(step(), {{"SLURM_STEP_NODELIST", "gpu[01-03]"}})),
              HasSubstr("SLURM_STEP_NODELIST=gpu[01-03] contradicts SLURM_STEP_NUM_NODES=2: it "
                        "names 3 nodes; "));
  EXPECT_THAT(refusal({}, with(step(), {{"SLURM_STEP_NUM_TASKS", "1"}})),
              HasSubstr("SLURM_STEP_NUM_TASKS=1 contradicts SLURM_STEP_NUM_NODES=2: every node "));
  EXPECT_THAT(
      refusal({}, with(step(), {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}})),
      HasSubstr("gpu[02,04] contradicts SLURM_STEP_NUM_NODES=1: it names 2 nodes; "));
}

TEST_F(PlanningUnderSlurm, WhatCannotBeReadIsNamedUnlessItIsSaid) {
  for (const auto& [name, text, sentence, options] :
       std::vector<std::tuple<std::string, std::string, std::string, std::string>>{
           {"SLURM_STEP_NODELIST", "gpu[01-",
            "SLURM_STEP_NODELIST=gpu[01-: it cannot be read as a list of nodes, a '[' has no ']'; "
            "say --master-addr",
            "--master-addr=gpu01"},
           {"SLURM_STEP_NUM_NODES", "two",
            "SLURM_STEP_NUM_NODES=two: it should be a whole number from 1; write srun",
            "--nnodes=2"},
           {"SLURM_STEP_NUM_TASKS", "0", "SLURM_STEP_NUM_TASKS=0: it should be a whole number",
            "--nnodes=2"},
           {"SLURM_NODEID", "-1", "SLURM_NODEID=-1: it should be a whole number from 0",
            "--node-rank=1"},
           {"SLURM_GPUS_ON_NODE", "many",
            "SLURM_GPUS_ON_NODE=many: it should be a whole number from 0; say --nproc-per-node",
            "--nproc-per-node=2"},
           {"SLURM_JOB_ID", "x", "SLURM_JOB_ID=x: it should be a whole number",
            "--master-port=29500"}}) {
    const Environment environment = with(step(), {{name, text}});
    EXPECT_THAT(refusal({}, environment), HasSubstr(sentence));
    const auto made = plan({options, "--rdzv-id=a"}, environment);
    EXPECT_TRUE(made) << options << ": " << made.error().to_string();
  }
}

TEST_F(PlanningUnderSlurm, AStepOnOneNodeMeetsNobody) {
  const Environment one = with(step(), {{"SLURM_NODEID", "0"},
                                        {"SLURM_STEP_NUM_NODES", "1"},
                                        {"SLURM_STEP_NUM_TASKS", "1"},
                                        {"SLURM_STEP_NODELIST", "gpu02"}});
  const agent::Job job = this->job({}, one);
  EXPECT_TRUE(job.nodes.is_alone());
  EXPECT_EQ(job.store_endpoint, agent::StoreEndpoint{}) << "a free port on loopback";
  EXPECT_EQ(job.local_world_size, 4);
}

TEST_F(PlanningUnderSlurm, ABatchScriptsShellRunsOnItsNode) {
  surroundings_.machine.affinity = std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7};
  const agent::Job job = this->job({}, batch());
  EXPECT_TRUE(job.nodes.is_alone());
  EXPECT_EQ(job.run_id, "4711");
  EXPECT_EQ(job.local_world_size, 8);
  EXPECT_EQ(job.preempt_signal, SIGUSR1);
  EXPECT_THAT(warnings({}, batch()), IsEmpty());
  const Environment many = with(batch(), {{"SLURM_JOB_NUM_NODES", "2"}, {"SLURM_NNODES", "2"}});
  EXPECT_EQ(refusal({}, many),
            "this job has 2 nodes (SLURM_JOB_NUM_NODES), and ddprun was started on the first of "
            "them only; write srun --ntasks-per-node=1 ddprun ..., or --nnodes=1 to run on this "
            "node alone");
  EXPECT_EQ(this->job({"--nnodes=1"}, many).local_world_size, 8);
}

TEST_F(PlanningUnderSlurm, AJobMadeOfOneNodeAllocationsIsNotThisOne) {
  const auto told = warnings({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:1"}, batch());
  EXPECT_THAT(told, Contains("--nnodes=2 goes before SLURM_JOB_NUM_NODES=1: nothing about nodes is "
                             "taken from Slurm"));
}

TEST_F(PlanningUnderSlurm, AShellBesideTheAllocationIsWarned) {
  const agent::Job job = this->job({}, shell());
  EXPECT_EQ(job.local_world_size, 1);
  EXPECT_EQ(job.run_id, "none");
  EXPECT_EQ(job.preempt_signal, std::nullopt);
  EXPECT_THAT(warnings({}, shell()),
              ElementsAre("this shell is on no node of Slurm's job 4711, so the workers will run "
                          "on this machine; write srun --ntasks-per-node=1 ddprun ..., or say "
                          "--nnodes=1 if that is what you want"));
  EXPECT_THAT(warnings({"--nnodes=1"}, shell()), IsEmpty());
  EXPECT_THAT(warnings({"--standalone"}, shell()), IsEmpty());
  const Environment many = with(shell(), {{"SLURM_JOB_NUM_NODES", "2"}});
  EXPECT_THAT(refusal({}, many), HasSubstr("in a shell on none of them; write srun"));
  EXPECT_TRUE(plan({"--standalone"}, many));
}

TEST_F(PlanningUnderSlurm, AnInteractiveShellOnANodeIsAsABatchScripts) {
  surroundings_.machine.affinity = std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7};
  const Environment interactive =
      with(batch(), {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_NODES", "1"}});
  EXPECT_EQ(job({}, interactive).run_id, "4711");
}

}  // namespace
}  // namespace ddprun::cli
