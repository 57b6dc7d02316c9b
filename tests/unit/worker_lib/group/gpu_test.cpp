// When CUDA is loaded, what is said where it cannot be used, and a first collective where it can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "ddprun/context.h"
#include "ddprun/leave.h"
#include "tests/unit/worker_lib/gpu.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A program without a launcher; what else can be on a GPU is in every_place_test.cpp.
TEST(Gpu, AProgramAloneGoesThroughNccl) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  Context context(Environment{}, {.backend = Backend::kNccl});
  ASSERT_TRUE(context.device().is_cuda());
  torch::Tensor tensor = torch::ones({4}, context.device());
  context.all_reduce(tensor);
  EXPECT_EQ(tensor.sum().item<int>(), 4);
  EXPECT_EQ(context.all_reduce(1), 1) << "on the CPU beside it";
  leave(context);
}

TEST(Cuda, IsLoadedEarlyWhereAGpuMayBeSeen) {
  const TempFolder folder;
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), nullptr));
  std::ofstream(folder.path() + "/nvidiactl") << "";
  EXPECT_TRUE(may_see_gpus(folder.path().c_str(), nullptr));
  EXPECT_TRUE(may_see_gpus(folder.path().c_str(), "0,2"));
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), ""));
  EXPECT_FALSE(may_see_gpus(folder.path().c_str(), "-1"));
}

TEST(Cuda, OfAnotherMajorVersionIsSaid) {
  EXPECT_EQ(nccl_misfit({.cuda = 13000, .nccl = 22809, .loaded_nccl = 22703}), "");
  EXPECT_EQ(nccl_misfit({.cuda = 13000, .nccl = 22809, .loaded_nccl = 0}), "") << "not known";
  EXPECT_THAT(
      nccl_misfit({.cuda = 13000, .nccl = 22809, .loaded_nccl = 30102}),
      HasSubstr("the NCCL that is loaded is 3.1.2, but libddprun_nccl.so is built for 2.28.9"));
  EXPECT_EQ(driver_misfit({.cuda = 13000}, 13010), "");
  EXPECT_EQ(driver_misfit({.cuda = 13020}, 13000), "") << "minor versions fit each other";
  EXPECT_EQ(driver_misfit({.cuda = 13000}, 0), "") << "not known";
  EXPECT_THAT(driver_misfit({.cuda = 13000}, 12080),
              HasSubstr("knows CUDA up to 12.8 and this LibTorch is built for CUDA 13.0"));
}

TEST(Cuda, WhatKeepsRanksOverNcclFromBeingReplacedIsSaid) {
  const NcclFacts good{.version = 22809, .gpu_generation = 8, .has_several_ranks_on_node = true};
  const auto why = [&](const auto& change) {
    NcclFacts facts = good;
    change(facts);
    return why_not_replaced(facts);
  };
  EXPECT_EQ(why([](NcclFacts&) {}), "");
  EXPECT_THAT(why([](NcclFacts& its) { its.version = 22703; }),
              HasSubstr("its NCCL is 2.27.3, and calls can be ended from 2.28.9 on"));
  EXPECT_THAT(why([](NcclFacts& its) { its.collnet = "1"; }),
              HasSubstr("NCCL_COLLNET_ENABLE is set"));
  EXPECT_EQ(why([](NcclFacts& its) { its.collnet = "0"; }), "");
  EXPECT_THAT(why([](NcclFacts& its) { its.gpu_generation = 9; }),
              HasSubstr("set NCCL_NVLS_ENABLE=0 when the job is started"));
  EXPECT_EQ(why([](NcclFacts& its) { its.gpu_generation = 9, its.nvls = "0"; }), "");
  EXPECT_EQ(
      why([](NcclFacts& its) { its.gpu_generation = 9, its.has_several_ranks_on_node = false; }),
      "");
}

// Here LibTorch has answered that there is no CUDA, as it does when it was asked too early.
TEST(Cuda, ThatCannotBeUsedIsSaid) {
  if (has_gpu()) GTEST_SKIP() << "it can be used here";
  torch::manual_seed(1);
  try {
    require_cuda(2);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("the driver shows 2 GPUs, but LibTorch can use none"),
                                    HasSubstr("before libtorch_cuda was loaded")));
  }
}

}  // namespace
}  // namespace ddprun::test
