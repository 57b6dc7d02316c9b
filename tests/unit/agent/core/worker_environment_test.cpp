#include "agent/core/worker_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

Job two_workers() {
  Job job;
  job.run_id = "job-7";
  job.role = "trainer";
  job.local_world_size = 2;
  job.restarts.max_restarts = 3;
  job.environment = {{"PATH", "/bin"}, {"RANK", "99"}};
  return job;
}

// The second of two nodes, with three workers before it.
rdzv::RoundStart second_node() {
  rdzv::RoundStart start;
  start.round = Round{4};
  start.node_rank = 1;
  start.node_count = 2;
  start.rank_offset = 3;
  start.world_size = 5;
  start.role_rank_offset = 1;
  start.role_world_size = 3;
  start.master_addr = "10.0.0.1";
  start.master_port = 40123;
  return start;
}

TEST(WorkerEnvironment, HasEveryVariableOfTorchrun) {
  const Job job = two_workers();
  const ChildEnvironment env = worker_environment(job, second_node(), 1, "/tmp/e/error.json");
  const Environment expected = {{"PATH", "/bin"},
                                {"LOCAL_RANK", "1"},
                                {"RANK", "4"},
                                {"WORLD_SIZE", "5"},
                                {"LOCAL_WORLD_SIZE", "2"},
                                {"GROUP_RANK", "1"},
                                {"GROUP_WORLD_SIZE", "2"},
                                {"ROLE_NAME", "trainer"},
                                {"ROLE_RANK", "2"},
                                {"ROLE_WORLD_SIZE", "3"},
                                {"MASTER_ADDR", "10.0.0.1"},
                                {"MASTER_PORT", "40123"},
                                {"TORCHELASTIC_RESTART_COUNT", "4"},
                                {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                {"TORCHELASTIC_RUN_ID", "job-7"},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"TORCHELASTIC_ERROR_FILE", "/tmp/e/error.json"},
                                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                {"OMP_NUM_THREADS", "1"}};
  EXPECT_EQ(env.lines(), to_lines(expected));
}

// So a module that reads one of a worker's variables while a zygote loads it is seen to miss it, and
// what all workers have is the same as theirs.
TEST(WorkerEnvironment, AZygoteHasWhatAllWorkersHave) {
  const Job job = two_workers();
  const ChildEnvironment env = zygote_environment(job);
  EXPECT_EQ(env.lines(), to_lines({{"PATH", "/bin"},
                                   {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                   {"OMP_NUM_THREADS", "1"}}));
  const auto of_a_worker = worker_environment(job, second_node(), 1, "/tmp/e/error.json").lines();
  for (const std::string& line : env.lines()) EXPECT_THAT(of_a_worker, Contains(line));
}

TEST(WorkerEnvironment, KeepsWhatTheServiceManagerSaysToTheAgent) {
  Job job = two_workers();
  for (const char* const name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
                                 "LISTEN_PID", "LISTEN_FDNAMES", "FDSTORE"}) {
    job.environment[name] = "1";
    EXPECT_FALSE(worker_environment(job, second_node(), 0, "").has(name)) << name;
  }
}

TEST(WorkerEnvironment, LeavesTheUsersThreadsAndErrorHandlingAlone) {
  Job job = two_workers();
  job.environment["OMP_NUM_THREADS"] = "6";
  job.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "3";
  const ChildEnvironment env = worker_environment(job, second_node(), 0, "");
  EXPECT_EQ(env.value_or_empty("OMP_NUM_THREADS"), "6");
  EXPECT_EQ(env.value_or_empty("TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
}

TEST(WorkerEnvironment, AVirtualLocalRankIsZeroAndSeesOneDevice) {
  Job job = two_workers();
  job.visible_devices_of = {"4", "GPU-8f1c"};
  const ChildEnvironment env = worker_environment(job, second_node(), 1, "");
  EXPECT_EQ(env.value_or_empty("LOCAL_RANK"), "0");
  EXPECT_EQ(env.value_or_empty("CUDA_VISIBLE_DEVICES"), "GPU-8f1c");
  EXPECT_EQ(env.value_or_empty("RANK"), "4");
  EXPECT_FALSE(env.has("HIP_VISIBLE_DEVICES"));
  job.environment["HIP_VISIBLE_DEVICES"] = "4,5";
  const ChildEnvironment on_rocm = worker_environment(job, second_node(), 0, "");
  EXPECT_EQ(on_rocm.value_or_empty("HIP_VISIBLE_DEVICES"), "4");
  EXPECT_EQ(on_rocm.value_or_empty("CUDA_VISIBLE_DEVICES"), "4");
}

TEST(WorkerEnvironment, SaysWhenRankZeroIsToHostTheStore) {
  Job job = two_workers();
  job.store_endpoint.agent_hosts_store = false;
  EXPECT_EQ(
      worker_environment(job, second_node(), 0, "").value_or_empty("TORCHELASTIC_USE_AGENT_STORE"),
      "False");
}

TEST(WorkerEnvironment, OneWorkerMayUseAllThreads) {
  Job job = two_workers();
  job.local_world_size = 1;
  EXPECT_FALSE(worker_environment(job, second_node(), 0, "").has("OMP_NUM_THREADS"));
}

TEST(WorkerArguments, SubstitutesAsPythonsTemplateDoes) {
  Program program;
  program.argv = {"python", "-u", "train.py"};
  program.first_user_argument = 3;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--out=${local_rank}.log", "--out=5.log"},
      {"$local_rank", "5"},
      {"a$local_rank/b", "a5/b"},
      {"$local_ranks", "$local_ranks"},
      {"${local_rank", "${local_rank"},
      {"${local_rank }", "${local_rank }"},
      {"$rank ${rank} $", "$rank ${rank} $"},
      {"$$", "$"},
      {"$$local_rank", "$local_rank"},
      {"$$$local_rank", "$5"},
      {"$5 $-", "$5 $-"},
      {"", ""},
      {"${local_rank}${local_rank}", "55"},
  };
  for (const auto& [given, expected] : cases) {
    program.argv.resize(3);
    program.argv.push_back(given);
    EXPECT_EQ(worker_arguments(program, 5).back(), expected) << given;
  }
}

TEST(WorkerArguments, LeavesTheProgramsOwnArgumentsAlone) {
  Program program;
  program.argv = {"/bin/$local_rank", "$$", "$local_rank"};
  program.first_user_argument = 2;
  EXPECT_THAT(worker_arguments(program, 1), ElementsAre("/bin/$local_rank", "$$", "1"));
}

}  // namespace
}  // namespace ddprun::agent
