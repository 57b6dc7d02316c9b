// A step of Slurm, and the ways in which a program says where to meet.
#include "worker_lib/process/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/unit/worker_lib/outcome.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

VariableLookup lookup_in(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    if (at == variables.end()) return std::nullopt;
    return at->second;
  };
}

Result<Environment> parse(const Variables& variables, const InitMethod& init_method = {}) {
  return test::outcome([&] { return parse_environment(lookup_in(variables), init_method); });
}

// As srun of Slurm 22 sets them for the sixth of 3 x 4 tasks, shortened.
Variables step() {
  return {{"SLURM_JOB_ID", "4711"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", "5"},
          {"SLURM_NTASKS", "12"},
          {"SLURM_STEP_NUM_TASKS", "12"},
          {"SLURM_LOCALID", "1"},
          {"SLURM_NODEID", "1"},
          {"SLURM_STEP_TASKS_PER_NODE", "4(x3)"},
          {"SLURM_STEP_NODELIST", "gpu[07-08,11]"},
          {"SLURM_JOB_NODELIST", "gpu[01-20]"}};
}

TEST(Slurm, ATaskOfAStepKnowsItsPlaceAndWhereToMeet) {
  const auto environment = parse(step());
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_TRUE(environment->is_slurm_step);
  EXPECT_EQ(environment->rank, 5);
  EXPECT_EQ(environment->world_size, 12);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->local_world_size, 4);
  EXPECT_EQ(environment->master_addr, "gpu07");
  EXPECT_EQ(environment->master_port, 12000 + 4711);
  EXPECT_FALSE(environment->agent_hosts_store);
}

TEST(Slurm, ALauncherInsideTheStepGoesBefore) {
  Variables variables = step();
  variables.insert(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "9"}});
  const auto environment = parse(variables);
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->world_size, 2);
  EXPECT_FALSE(environment->is_slurm_step);
}

TEST(Slurm, TheUsersMasterAddressAndPortAreKept) {
  Variables variables = step();
  variables["MASTER_ADDR"] = "login1";
  variables["MASTER_PORT"] = "29500";
  const auto environment = parse(variables);
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->master_addr, "login1");
  EXPECT_EQ(environment->master_port, 29500);
  EXPECT_EQ(environment->rank, 5);
}

TEST(Slurm, TheShellOfABatchScriptIsNoRank) {
  Variables variables = step();
  variables.erase("SLURM_STEP_ID");
  const auto environment = parse(variables);
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->world_size, 1);
  EXPECT_EQ(environment->rank, 0);
}

TEST(Slurm, OlderAndSparserVariablesWillDo) {
  Variables variables = step();
  variables.erase("SLURM_STEP_NUM_TASKS");
  variables.erase("SLURM_STEP_TASKS_PER_NODE");
  variables.erase("SLURM_STEP_NODELIST");
  auto environment = parse(variables);
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->world_size, 12);
  EXPECT_EQ(environment->local_world_size, 2) << "at least those up to this one";
  EXPECT_EQ(environment->master_addr, "gpu01");
  variables["SLURM_NTASKS_PER_NODE"] = "4";
  environment = parse(variables);
  EXPECT_EQ(environment->local_world_size, 4);
}

TEST(Slurm, WhatMakesNoSenseIsNamed) {
  Variables variables = step();
  variables["SLURM_PROCID"] = "x";
  EXPECT_THAT(parse(variables).error().message, HasSubstr("SLURM_PROCID is 'x'"));
  variables["SLURM_PROCID"] = "12";
  EXPECT_THAT(parse(variables).error().message, HasSubstr("SLURM_PROCID=12 contradicts"));
  variables = step();
  variables.erase("SLURM_STEP_NODELIST");
  variables.erase("SLURM_JOB_NODELIST");
  EXPECT_THAT(parse(variables).error().message, HasSubstr("SLURM_JOB_NODELIST"));
  variables = step();
  variables.erase("SLURM_STEP_NUM_TASKS");
  variables.erase("SLURM_NTASKS");
  EXPECT_THAT(parse(variables).error().message, HasSubstr("SLURM_NTASKS is"));
}

TEST(Slurm, AListOfNodesThatCannotBeReadMattersOnlyWithoutAnAddress) {
  Variables variables = step();
  variables["SLURM_STEP_NODELIST"] = "gpu[07-";
  EXPECT_THAT(
      parse(variables).error().message,
      HasSubstr("SLURM_STEP_NODELIST is 'gpu[07-', which cannot be read: a '[' has no ']'"));
  variables["MASTER_ADDR"] = "gpu07";
  EXPECT_TRUE(parse(variables));
}

TEST(Slurm, AnInteractiveShellOfTheAllocationIsNoRank) {
  Variables variables = step();
  variables["SLURM_STEP_ID"] = "4294967290";
  EXPECT_EQ(parse(variables)->world_size, 1);
}

TEST(Slurm, TasksPerNodeAreCountedThrough) {
  const std::string list = "4(x2),3,1(x2)";
  for (const auto& [node, tasks] : std::map<int, int>{{0, 4}, {1, 4}, {2, 3}, {3, 1}, {4, 1}}) {
    EXPECT_EQ(tasks_on_node(list, node), tasks) << node;
  }
  EXPECT_EQ(tasks_on_node(list, 5), std::nullopt);
  for (const char* nonsense : {"", "x", "4(x", "4(x)", "4(2)", "0", "-1", "4(x0)", ",4"}) {
    EXPECT_EQ(tasks_on_node(nonsense, 0), std::nullopt) << nonsense;
  }
}

// --- init methods

const Variables kOfTorchrun = {{"RANK", "1"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "m"},
                               {"MASTER_PORT", "9"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

TEST(InitMethod, TcpSaysWhereAndTheVariablesWho) {
  const auto environment = parse(kOfTorchrun, {.url = "tcp://10.0.0.5:23456"});
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->rank, 1);
  EXPECT_EQ(environment->world_size, 4);
  EXPECT_EQ(environment->master_addr, "10.0.0.5");
  EXPECT_EQ(environment->master_port, 23456);
  EXPECT_FALSE(environment->agent_hosts_store) << "the agent's store is elsewhere";
  EXPECT_TRUE(parse(kOfTorchrun, {.url = "tcp://m:9"})->agent_hosts_store);
}

TEST(InitMethod, TheProgramMaySayWhoItIs) {
  for (const InitMethod& init_method :
       {InitMethod{"tcp://h:5?rank=2&world_size=3", {}, {}}, InitMethod{"tcp://h:5", 2, 3}}) {
    const auto environment = parse({}, init_method);
    ASSERT_TRUE(environment) << environment.error().message;
    EXPECT_EQ(environment->rank, 2);
    EXPECT_EQ(environment->world_size, 3);
    EXPECT_EQ(environment->local_rank, 0);
  }
  EXPECT_EQ(parse({}, {"tcp://[::1]:5", 0, 2})->master_addr, "::1");
  const auto by_variables =
      parse({{"MASTER_ADDR", "h"}, {"MASTER_PORT", "7"}}, {.rank = 1, .world_size = 2});
  ASSERT_TRUE(by_variables) << by_variables.error().message;
  EXPECT_EQ(by_variables->master_port, 7);
}

TEST(InitMethod, AFileNeedsNoAddress) {
  const auto environment = parse({}, {"file:///shared/meet", 1, 2});
  ASSERT_TRUE(environment) << environment.error().message;
  EXPECT_EQ(environment->store_file, "/shared/meet");
  EXPECT_EQ(environment->master_addr, "");
}

TEST(InitMethod, WhatMakesNoSenseIsNamed) {
  const auto said = [](const InitMethod& init_method, const Variables& variables = {}) {
    const auto environment = parse(variables, init_method);
    return environment ? std::string("accepted") : environment.error().message;
  };
  EXPECT_THAT(said({"tcp://h"}), HasSubstr("'tcp://h' has no port"));
  EXPECT_THAT(said({"tcp://:5"}), HasSubstr("has no host"));
  EXPECT_THAT(said({"tcp://h:99999"}), HasSubstr("has no port"));
  EXPECT_THAT(said({"file://relative"}), HasSubstr("no absolute path"));
  EXPECT_THAT(said({"mpi://"}), HasSubstr("is none that there is"));
  EXPECT_THAT(said({"tcp://h:5?ranks=1"}), HasSubstr("'ranks'"));
  EXPECT_THAT(said({"tcp://h:5?rank"}), HasSubstr("no number in 'rank'"));
  EXPECT_THAT(said({"tcp://h:5"}), HasSubstr("RANK, WORLD_SIZE is not"));
  EXPECT_THAT(said({"tcp://h:5", 3, 3}), HasSubstr("rank 3 in a world of 3 makes no sense"));
  EXPECT_THAT(said({"tcp://h:5", -1, 3}), HasSubstr("makes no sense"));
  EXPECT_THAT(said({.rank = 1, .world_size = 2}), HasSubstr("MASTER_ADDR, MASTER_PORT is not"));
}

}  // namespace
}  // namespace ddprun
