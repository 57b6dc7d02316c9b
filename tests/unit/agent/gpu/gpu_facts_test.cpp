#include "agent/gpu/gpu_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

GpuSample gpu(std::uint64_t used, std::vector<GpuProcess> processes = {}) {
  GpuSample sample;
  sample.memory_used = used;
  sample.memory_total = 80 * kGiB;
  sample.processes = std::move(processes);
  return sample;
}

TEST(GpuFacts, ARankUsesTheGpuThatHasItsProcessElseTheOneAssigned) {
  std::vector<GpuSample> gpus{gpu(0), gpu(0, {{71, kGiB, "python"}}), gpu(0)};
  gpus[2].gpu.uuid = "GPU-abc";
  EXPECT_EQ(gpu_of({71, "2", 0}, gpus), 1) << "the driver knows it better";
  EXPECT_EQ(gpu_of({72, "2", 0}, gpus), 2);
  EXPECT_EQ(gpu_of({72, "GPU-ab", 0}, gpus), 2);
  EXPECT_EQ(gpu_of({72, "", 1}, gpus), 1) << "as programs take their local rank";
  EXPECT_EQ(gpu_of({72, ""}, gpus), std::nullopt) << "other GPUs are named, too few";
  gpus[0].processes = {{71, 2 * kGiB, "python"}};
  EXPECT_EQ(gpu_of({71, "2", 0}, gpus), 0) << "where it holds most";
  EXPECT_EQ(gpu_of({71, "1", 0}, gpus), 1) << "it has a context on the other one, too";
  EXPECT_EQ(gpu_of({72, "", 8}, gpus), std::nullopt);
  EXPECT_EQ(gpu_of({72, "MIG-7", 0}, gpus), std::nullopt);
  EXPECT_EQ(gpu_of({0, "", 0}, {}), std::nullopt);
}

TEST(GpuFacts, PidsMeanSomethingInTheirNamespace) {
  const std::vector<GpuSample> gpus{gpu(0, {{71, kGiB, "python"}})};
  EXPECT_TRUE(are_pids_known(gpus, {71, 5}, false));
  EXPECT_FALSE(are_pids_known(gpus, {5}, false));
  EXPECT_TRUE(are_pids_known(gpus, {5}, true));
}

TEST(GpuFacts, AFailureHasItsXidsAndEccErrors) {
  GpuFailure failure{.gpu = 5, .host = "b1", .xids = {94, 79, 79, 999}, .ecc = 2};
  EXPECT_THAT(in_words(failure),
              ElementsAre("Xid 79 (it has fallen off the bus) on GPU 5 of b1",
                          "Xid 94 (a contained ECC error) on GPU 5 of b1", "Xid 999 on GPU 5 of b1",
                          "2 uncorrected ECC errors on GPU 5 of b1 since the round began"));
  failure = {.gpu = 0, .host = "b1", .xids = {}};
  EXPECT_THAT(in_words(failure), IsEmpty());
  failure.sample.trouble = "it is lost";
  EXPECT_THAT(in_words(failure), ElementsAre("GPU 0 of b1: it is lost"));
}

TEST(GpuFacts, WithoutMemoryItSaysWhichProcessesHoldSome) {
  GpuFailure failure{.gpu = 1, .host = "b1", .xids = {}};
  failure.sample = gpu(70 * kGiB, {{71, 60 * kGiB, "python"}, {9, 0, ""}});
  failure.is_out_of_memory = true;
  failure.own = {71};
  failure.are_pids_known = true;
  EXPECT_THAT(
      in_words(failure),
      ElementsAre("GPU 1 of b1 has 70.0 of 80.0 GiB in use after its end; held by pid 71 "
                  "(python) 61440 MiB, of this job; pid 9 an unknown part, not of this job"));
  failure.pid = 71;
  EXPECT_THAT(in_words(failure), ElementsAre(::testing::HasSubstr(
                                     "pid 71 (python) 61440 MiB, the rank's own process, not yet "
                                     "freed; pid 9 an unknown part, not of this job")));
  failure.are_pids_known = false;
  failure.sample.processes.pop_back();
  EXPECT_THAT(in_words(failure),
              ElementsAre("GPU 1 of b1 has 70.0 of 80.0 GiB in use after its end; held by pid 71 "
                          "(python) 61440 MiB (pids of the host, which mean nothing in this "
                          "container)"));
  failure.sample.processes.clear();
  EXPECT_THAT(in_words(failure),
              ElementsAre("GPU 1 of b1 has 70.0 of 80.0 GiB in use after its end; the driver names "
                          "no process that holds some"));
}

TEST(GpuFacts, AnErrorsWordsTell) {
  EXPECT_TRUE(says_out_of_memory("torch.OutOfMemoryError: CUDA out of memory. Tried to"));
  EXPECT_TRUE(says_out_of_memory("RuntimeError: CUDA error: out of memory"));
  EXPECT_FALSE(says_out_of_memory("RuntimeError: CUDA error: an illegal memory access"));
  EXPECT_TRUE(speaks_of_cuda("RuntimeError: CUDA error: an illegal memory access"));
  EXPECT_FALSE(speaks_of_cuda("ValueError"));
}

// The table of gpu_facts.h.
TEST(MemoryWait, WorkersStartWhenTheMemoryOfTheDeadIsFree) {
  MemoryWait wait{.dead = {71}, .gpus = {0}};
  const std::vector<GpuSample> held{gpu(30 * kGiB, {{71, 20 * kGiB, "python"}})};
  const std::vector<GpuSample> others{gpu(30 * kGiB, {{9, 30 * kGiB, "python"}})};
  EXPECT_EQ(what_is_awaited(wait, {}, true), "") << "there is no library";
  EXPECT_EQ(what_is_awaited(wait, held, true), "20.0 GiB on GPU 0 (pid 71)");
  EXPECT_EQ(what_is_awaited(wait, held, false), "20.0 GiB on GPU 0 (pid 71)");
  EXPECT_EQ(what_is_awaited(wait, others, true), "");
  wait.gpus = {1};
  EXPECT_EQ(what_is_awaited(wait, held, true), "20.0 GiB on GPU 0 (pid 71)")
      << "the rank died before it was known which GPU it uses";
  EXPECT_EQ(what_is_awaited(wait, held, false), "") << "pid 71 may be another process of the host";
}

TEST(MemoryWait, WherePidsMeanNothingTheMemoryInUseCounts) {
  MemoryWait wait{.dead = {71}, .gpus = {}};
  wait.before_first = {gpu(kGiB)};
  EXPECT_EQ(what_is_awaited(wait, {gpu(kGiB + MemoryWait::kTolerance)}, false), "");
  EXPECT_EQ(what_is_awaited(wait, {gpu(3 * kGiB)}, false), "2.0 GiB on GPU 0");
  wait.before_first.reset();
  EXPECT_EQ(what_is_awaited(wait, {gpu(3 * kGiB)}, false), "3.0 GiB on GPU 0") << "the first look";
  wait.last = {gpu(3 * kGiB)};
  EXPECT_EQ(what_is_awaited(wait, {gpu(2 * kGiB)}, false), "2.0 GiB on GPU 0") << "it falls";
  wait.last = {gpu(2 * kGiB)};
  EXPECT_EQ(what_is_awaited(wait, {gpu(2 * kGiB)}, false), "");
}

}  // namespace
}  // namespace ddprun::agent
